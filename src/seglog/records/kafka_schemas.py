"""The messages in Kafka 4.4's internal topics, as facts: id, name, highest version, and the fields in their order.

One message a line, continued by indented lines; the notation is that of `seglog.records.kafka_messages`::

    <id> <Name> <highest version> [~<first flexible version>]: <field>, <field>, ...
    field:  <name> <type>[?] [<since>+ | <only version>] [@<tag>] [=<default>]
    type:   int32 string uuid ..., int32[], [Struct: fields] an array of structs, {Struct: fields} one struct
    ?       may be null        [Struct] alone: as it was written before in the same message
"""

from typing import Final

GROUP_KEYS: Final = """\
0 LegacyOffsetCommitKey 0: group string, topic string, partition int32
1 OffsetCommitKey 0: group string, topic string, partition int32
2 GroupMetadataKey 0: group string
3 ConsumerGroupMetadataKey 0: groupId string
4 ConsumerGroupPartitionMetadataKey 0: groupId string
5 ConsumerGroupMemberMetadataKey 0: groupId string, memberId string
6 ConsumerGroupTargetAssignmentMetadataKey 0: groupId string
7 ConsumerGroupTargetAssignmentMemberKey 0: groupId string, memberId string
8 ConsumerGroupCurrentMemberAssignmentKey 0: groupId string, memberId string
10 ShareGroupMemberMetadataKey 0: groupId string, memberId string
11 ShareGroupMetadataKey 0: groupId string
12 ShareGroupTargetAssignmentMetadataKey 0: groupId string
13 ShareGroupTargetAssignmentMemberKey 0: groupId string, memberId string
14 ShareGroupCurrentMemberAssignmentKey 0: groupId string, memberId string
15 ShareGroupStatePartitionMetadataKey 0: groupId string
16 ConsumerGroupRegularExpressionKey 0: groupId string, regularExpression string
17 StreamsGroupMetadataKey 0: groupId string
19 StreamsGroupMemberMetadataKey 0: groupId string, memberId string
20 StreamsGroupTargetAssignmentMetadataKey 0: groupId string
21 StreamsGroupTargetAssignmentMemberKey 0: groupId string, memberId string
22 StreamsGroupCurrentMemberAssignmentKey 0: groupId string, memberId string
23 StreamsGroupTopologyKey 0: groupId string
"""
"""Keys of ``__consumer_offsets``."""

GROUP_VALUES: Final = """\
0 LegacyOffsetCommitValue 0: offset int64, metadata string, commitTimestamp int64
1 OffsetCommitValue 4 ~4: offset int64, leaderEpoch int32 3+ =-1, metadata string, commitTimestamp int64,
  expireTimestamp int64 1 =-1, topicId uuid 4+ @0
2 GroupMetadataValue 4 ~4: protocolType string, generation int32, protocol string?, leader string?,
  currentStateTimestamp int64 2+ =-1, members [MemberMetadata: memberId string, groupInstanceId string? 3+ =null,
  clientId string, clientHost string, rebalanceTimeout int32 1+ =-1, sessionTimeout int32, subscription bytes,
  assignment bytes]
3 ConsumerGroupMetadataValue 0 ~0: epoch int32, metadataHash int64 @0
4 ConsumerGroupPartitionMetadataValue 0 ~0: topics [TopicMetadata: topicId uuid, topicName string, numPartitions
  int32, partitionMetadata [PartitionMetadata: partition int32, racks string[]]]
5 ConsumerGroupMemberMetadataValue 0 ~0: instanceId string?, rackId string?, clientId string, clientHost string,
  subscribedTopicNames string[], subscribedTopicRegex string?, rebalanceTimeoutMs int32 =-1, serverAssignor string?,
  classicMemberMetadata {ClassicMemberMetadata: sessionTimeoutMs int32, supportedProtocols [ClassicProtocol: name
  string, metadata bytes]}? @0
6 ConsumerGroupTargetAssignmentMetadataValue 0 ~0: assignmentEpoch int32, assignmentTimestamp int64 @0
7 ConsumerGroupTargetAssignmentMemberValue 0 ~0: topicPartitions [TopicPartition: topicId uuid, partitions int32[]]
8 ConsumerGroupCurrentMemberAssignmentValue 0 ~0: memberEpoch int32, previousMemberEpoch int32, state int8,
  assignedPartitions [TopicPartitions: topicId uuid, partitions int32[], assignmentEpochs int32[]? @0],
  partitionsPendingRevocation [TopicPartitions]
10 ShareGroupMemberMetadataValue 0 ~0: rackId string?, clientId string, clientHost string, subscribedTopicNames
  string[]
11 ShareGroupMetadataValue 0 ~0: epoch int32, metadataHash int64
12 ShareGroupTargetAssignmentMetadataValue 0 ~0: assignmentEpoch int32, assignmentTimestamp int64 @0
13 ShareGroupTargetAssignmentMemberValue 0 ~0: topicPartitions [TopicPartition: topicId uuid, partitions int32[]]
14 ShareGroupCurrentMemberAssignmentValue 0 ~0: memberEpoch int32, previousMemberEpoch int32, state int8,
  assignedPartitions [TopicPartitions: topicId uuid, partitions int32[]]
15 ShareGroupStatePartitionMetadataValue 0 ~0: initializingTopics [TopicPartitionsInfo: topicId uuid, topicName
  string, partitions int32[]], initializedTopics [TopicPartitionsInfo], deletingTopics [TopicInfo: topicId uuid,
  topicName string]
16 ConsumerGroupRegularExpressionValue 0 ~0: topics string[], version int64, timestamp int64
17 StreamsGroupMetadataValue 0 ~0: epoch int32, metadataHash int64, validatedTopologyEpoch int32 @0=-1,
  lastAssignmentConfigs [LastAssignmentConfig: key string, value string]? @1, storedDescriptionTopologyEpoch int32
  @2=-1, failedDescriptionTopologyEpoch int32 @3=-1
19 StreamsGroupMemberMetadataValue 0 ~0: instanceId string?, rackId string?, clientId string, clientHost string,
  rebalanceTimeoutMs int32 =-1, topologyEpoch int32, processId string, userEndpoint {Endpoint: host string, port
  uint16}? =null, clientTags [KeyValue: key string, value string]
20 StreamsGroupTargetAssignmentMetadataValue 0 ~0: assignmentEpoch int32, assignmentTimestamp int64 @0
21 StreamsGroupTargetAssignmentMemberValue 0 ~0: activeTasks [TaskIds: subtopologyId string, partitions int32[]],
  standbyTasks [TaskIds], warmupTasks [TaskIds]
22 StreamsGroupCurrentMemberAssignmentValue 0 ~0: memberEpoch int32, previousMemberEpoch int32, state int8,
  activeTasks [TaskIds: subtopologyId string, partitions int32[], assignmentEpochs int32[]? @0], standbyTasks
  [TaskIds], warmupTasks [TaskIds], activeTasksPendingRevocation [TaskIds], standbyTasksPendingRevocation [TaskIds],
  warmupTasksPendingRevocation [TaskIds]
23 StreamsGroupTopologyValue 0 ~0: epoch int32, subtopologies [Subtopology: subtopologyId string, sourceTopics
  string[], sourceTopicRegex string[], stateChangelogTopics [TopicInfo: name string, partitions int32,
  replicationFactor int16, topicConfigs [TopicConfig: key string, value string]], repartitionSinkTopics string[],
  repartitionSourceTopics [TopicInfo], copartitionGroups [CopartitionGroup: sourceTopics int16[], sourceTopicRegex
  int16[], repartitionSourceTopics int16[]]]
"""
"""Values of ``__consumer_offsets``."""

TRANSACTION_KEYS: Final = """\
0 TransactionLogKey 0: transactionalId string
"""
"""Keys of ``__transaction_state``."""

TRANSACTION_VALUES: Final = """\
0 TransactionLogValue 1 ~1: producerId int64, previousProducerId int64 1+ @0=-1, nextProducerId int64 1+ @1=-1,
  producerEpoch int16, nextProducerEpoch int16 1+ @3=-1, transactionTimeoutMs int32, transactionStatus int8,
  transactionPartitions [PartitionsSchema: topic string, partitionIds int32[]]?, transactionLastUpdateTimestampMs
  int64, transactionStartTimestampMs int64, clientTransactionVersion int16 1+ @2
"""
"""Values of ``__transaction_state``."""

SHARE_KEYS: Final = """\
0 ShareSnapshotKey 0: groupId string, topicId uuid, partition int32
1 ShareUpdateKey 0: groupId string, topicId uuid, partition int32
"""
"""Keys of ``__share_group_state``."""

SHARE_VALUES: Final = """\
0 ShareSnapshotValue 0 ~0: snapshotEpoch int32, stateEpoch int32, leaderEpoch int32, startOffset int64,
  deliveryCompleteCount int32 @0=-1, createTimestamp int64, writeTimestamp int64, stateBatches [StateBatch:
  firstOffset int64, lastOffset int64, deliveryState int8, deliveryCount int16]
1 ShareUpdateValue 0 ~0: snapshotEpoch int32, leaderEpoch int32, startOffset int64, deliveryCompleteCount int32
  @0=-1, stateBatches [StateBatch: firstOffset int64, lastOffset int64, deliveryState int8, deliveryCount int16]
"""
"""Values of ``__share_group_state``."""

METADATA_RECORDS: Final = """\
0 RegisterBrokerRecord 4 ~0: brokerId int32, isMigratingZkBroker bool 2+, incarnationId uuid, brokerEpoch int64,
  endPoints [BrokerEndpoint: name string, host string, port uint16, securityProtocol int16], features
  [BrokerFeature: name string, minSupportedVersion int16, maxSupportedVersion int16], rack string?, fenced bool,
  inControlledShutdown bool 1+, logDirs uuid[] 3+ @0, cordonedLogDirs uuid[]? 4+ @1=null
1 UnregisterBrokerRecord 0 ~0: brokerId int32, brokerEpoch int64
2 TopicRecord 0 ~0: name string, topicId uuid
3 PartitionRecord 2 ~0: partitionId int32, topicId uuid, replicas int32[], isr int32[], removingReplicas int32[],
  addingReplicas int32[], leader int32, leaderRecoveryState int8 @0, leaderEpoch int32, partitionEpoch int32,
  directories uuid[] 1+, eligibleLeaderReplicas int32[]? 2+ @1=null, lastKnownElr int32[]? 2+ @2=null
4 ConfigRecord 0 ~0: resourceType int8, resourceName string, name string, value string?
5 PartitionChangeRecord 2 ~0: partitionId int32, topicId uuid, isr int32[]? @0=null, leader int32 @1=-2, replicas
  int32[]? @2=null, removingReplicas int32[]? @3=null, addingReplicas int32[]? @4=null, leaderRecoveryState int8
  @5=-1, directories uuid[]? 1+ @8=null, eligibleLeaderReplicas int32[]? 2+ @6=null, lastKnownElr int32[]? 2+
  @7=null
7 FenceBrokerRecord 0 ~0: id int32, epoch int64
8 UnfenceBrokerRecord 0 ~0: id int32, epoch int64
9 RemoveTopicRecord 0 ~0: topicId uuid
10 DelegationTokenRecord 0 ~0: owner string, requester string, renewers string[], issueTimestamp int64, maxTimestamp
  int64, expirationTimestamp int64, tokenId string
11 UserScramCredentialRecord 0 ~0: name string, mechanism int8, salt bytes, storedKey bytes, serverKey bytes,
  iterations int32
12 FeatureLevelRecord 0 ~0: name string, featureLevel int16
14 ClientQuotaRecord 0 ~0: entity [EntityData: entityType string, entityName string?], key string, value float64,
  remove bool
15 ProducerIdsRecord 0 ~0: brokerId int32, brokerEpoch int64, nextProducerId int64
17 BrokerRegistrationChangeRecord 3 ~0: brokerId int32, brokerEpoch int64, fenced int8 @0, inControlledShutdown int8
  1+ @1, logDirs uuid[] 2+ @2, cordonedLogDirs uuid[]? 3+ @3=null
18 AccessControlEntryRecord 0 ~0: id uuid, resourceType int8, resourceName string, patternType int8, principal
  string, host string, operation int8, permissionType int8
19 RemoveAccessControlEntryRecord 0 ~0: id uuid
20 NoOpRecord 0 ~0:
21 ZkMigrationStateRecord 0 ~0: zkMigrationState int8
22 RemoveUserScramCredentialRecord 0 ~0: name string, mechanism int8
23 BeginTransactionRecord 0 ~0: name string? @0=null
24 EndTransactionRecord 0 ~0:
25 AbortTransactionRecord 0 ~0: reason string? @0=null
26 RemoveDelegationTokenRecord 0 ~0: tokenId string
27 RegisterControllerRecord 0 ~0: controllerId int32, incarnationId uuid, zkMigrationReady bool, endPoints
  [ControllerEndpoint: name string, host string, port uint16, securityProtocol int16], features [ControllerFeature:
  name string, minSupportedVersion int16, maxSupportedVersion int16]
28 ClearElrRecord 0 ~0: topicName string
"""
"""Values of ``__cluster_metadata``; it has no keys."""

CONSUMER_PROTOCOL: Final = """\
0 ConsumerProtocolSubscription 3: topics string[], userData bytes? =null, ownedPartitions [TopicPartition: topic string
  1+, partitions int32[] 1+] 1+, generationId int32 2+ =-1, rackId string? 3+ =null
1 ConsumerProtocolAssignment 3: assignedPartitions [TopicPartition: topic string, partitions int32[]], userData
  bytes? =null
"""
"""The data of a group's member: 0 its subscription, 1 its assignment."""

CONTROL_RECORDS: Final = """\
2 LeaderChangeMessage 1 ~0: version int16, leaderId int32, voters [Voter: voterId int32, voterDirectoryId uuid 1+],
  grantingVoters [Voter]
3 SnapshotHeaderRecord 0 ~0: version int16, lastContainedLogTimestamp int64
4 SnapshotFooterRecord 0 ~0: version int16
5 KRaftVersionRecord 0 ~0: version int16, kRaftVersion int16
6 VotersRecord 0 ~0: version int16, voters [Voter: voterId int32, voterDirectoryId uuid, endpoints [Endpoint: name
  string, host string, port uint16], kRaftVersionFeature {KRaftVersionFeature: minSupportedVersion int16,
  maxSupportedVersion int16}]
"""
"""Values of KRaft's control records, by type."""
