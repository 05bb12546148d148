"""Kafka's configuration of a broker, as far as seglog uses it: one table of type, range, default and meaning.

Keys, defaults and ranges are those of Kafka 4.4 (``AbstractKafkaConfig``) unless the meaning says otherwise. The keys
of log directories are a broker's too: `seglog.core.config`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from seglog.core.addresses import WILDCARDS, Address, Addresses, parse_host_port
from seglog.core.config import DIRECTORY_KEYS, SYNONYMS, LogDirConfig
from seglog.core.errors import InvalidConfigError
from seglog.core.kafka_broker_keys import kafka_only_keys
from seglog.core.settings import (
    Boolean,
    Enumeration,
    Names,
    NameSet,
    ScaledInteger,
    Setting,
    Text,
    Typed,
    check,
    int32,
    int64,
    setting,
    settings_of,
    unknown,
)
from seglog.core.types import MAX_INT32, MAX_INT64

__all__ = ["BROKER_KEYS", "DYNAMIC_KEYS", "REFUSED", "BrokerConfig", "default_text", "keys_of_environment", "refusal"]

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_PASSWORD: Final = Typed("password")
_STORE_TYPE: Final = Enumeration({name: name for name in ("JKS", "PKCS12", "PEM")}, ignores_case=True)
_STORE_TYPE_OR_NONE: Final = Enumeration({name: name for name in ("", "JKS", "PKCS12", "PEM")}, ignores_case=True)
CNXN_NETTY: Final = "org.apache.zookeeper.ClientCnxnSocketNetty"
CNXN_NIO: Final = "org.apache.zookeeper.ClientCnxnSocketNIO"
_ASSIGNORS: Final = ("uniform", "range")
_MIGRATION_POLICIES: Final = ("bidirectional", "upgrade", "downgrade", "disabled")
IN_FLIGHT_BYTES: Final = 256 * 1024**2
STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
LEADER_SELECTOR: Final = "org.apache.kafka.common.replica.LeaderSelector"
RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """A broker's configuration. ``given`` has the texts of all given keys, ``without_effect`` those of Kafka's keys
    that mean nothing here; ``notes`` are warnings about these and about unknown keys. ``listener_keys`` has the keys of
    ``listener.name.<listener>.`` by listener, in capitals, and by the rest of their names.

    >>> config = BrokerConfig.from_mapping({"listeners": "PLAINTEXT://:9092", "log.retention.hours": "1"})
    >>> config.listeners, config.directory.topics.retention_ms
    ((Address(name='PLAINTEXT', host='', port=9092),), 3600000)
    >>> BrokerConfig.from_mapping({"num.partitons": "3"}).notes
    ("unknown broker configuration 'num.partitons'; did you mean num.partitions?",)
    """

    advertised_listeners: tuple[Address, ...] = setting(
        Addresses(), "addresses that clients connect to, if they differ from listeners", default=()
    )
    allow_everyone_if_no_acl_found: bool = setting(
        Boolean(), "whether everyone may use what no ACL is about, if there is an authorizer", default=False
    )
    authorizer_class_name: str = setting(
        Text(),
        f"{STANDARD_AUTHORIZER}: ACLs are checked. Empty: everyone who has connected may do everything",
        default="",
    )
    auto_create_topics_enable: bool = setting(
        Boolean(), "whether a request for an unknown topic creates it", default=True
    )
    auto_leader_rebalance_enable: bool = setting(
        Boolean(), "whether partitions move back to their preferred leaders", default=True
    )
    broker_id: int = setting(int32(0, also=-1), "old name of node.id", default=-1)
    broker_rack: str = setting(Text(), "rack of this broker", default="")
    broker_session_timeout_ms: int = setting(
        int32(1000), "ms without a heartbeat after which a broker counts as dead", default=9000
    )
    cluster_store: str = setting(
        Text(),
        "metadata store of the cluster: sqlite:FILE or zookeeper://HOST:PORT,.../NAME; only seglog has this key",
        default="",
    )
    cluster_store_jaas_config: str = setting(
        _PASSWORD,
        "login at ZooKeeper: the module in the section Client of Kafka's JAAS file; only seglog has this key",
        default="",
        is_secret=True,
    )
    connection_failed_authentication_delay_ms: int = setting(
        int32(0), "ms that a client waits for the answer to a failed authentication", default=100
    )
    connections_max_idle_ms: int = setting(
        int64(1, also=-1), "ms after which an idle connection is closed", default=600_000
    )
    connections_max_reauth_ms: int = setting(
        int64(0), "ms after which a client must authenticate again; 0: never", default=0
    )
    controlled_shutdown_enable: bool = setting(
        Boolean(), "whether a broker hands over its partitions before it stops", default=True
    )
    controller_listener_names: str = setting(
        Text(), "names in listeners to ignore: seglog has no controller listener", default=""
    )
    controller_quota_window_num: int = setting(
        int32(1), "samples of the window of controller_mutation_rate", default=11
    )
    controller_quota_window_size_seconds: int = setting(
        int32(1), "seconds of each sample of controller_mutation_rate", default=1
    )
    default_replication_factor: int = setting(
        int32(1), "replicas of a topic that is created without a number", default=1
    )
    delete_topic_enable: bool = setting(Boolean(), "whether topics can be deleted", default=True)
    delegation_token_expiry_check_interval_ms: int = setting(
        int64(1), "ms between two removals of delegation tokens that have expired", default=3_600_000
    )
    delegation_token_expiry_time_ms: int = setting(
        int64(1), "ms after which a delegation token expires if it is not renewed", default=86_400_000
    )
    delegation_token_max_lifetime_ms: int = setting(
        int64(1), "ms after which a delegation token cannot be renewed", default=604_800_000
    )
    delegation_token_secret_key: str = setting(
        _PASSWORD,
        "secret of all brokers from which the secrets of delegation tokens are made; there are none without it",
        default="",
        is_secret=True,
    )
    fetch_max_bytes: int = setting(int32(1024), "most bytes of records in a Fetch response", default=55 * 1024**2)
    group_consumer_assignment_interval_ms: int = setting(
        int32(0), "ms between two target assignments of a consumer group (KIP-1263)", default=1000
    )
    group_consumer_assignors: frozenset[str] = setting(
        Names(_ASSIGNORS), "assignors of consumer groups; the first one is the default", default=NameSet.of(_ASSIGNORS)
    )
    group_consumer_heartbeat_interval_ms: int = setting(
        int32(1), "ms between two heartbeats of a member of a consumer group", default=5000
    )
    group_consumer_max_assignment_interval_ms: int = setting(
        int32(0), "longest consumer.assignment.interval.ms of a group", default=15_000
    )
    group_consumer_max_heartbeat_interval_ms: int = setting(
        int32(1), "longest consumer.heartbeat.interval.ms of a group", default=15_000
    )
    group_consumer_max_session_timeout_ms: int = setting(
        int32(1), "longest consumer.session.timeout.ms of a group", default=60_000
    )
    group_consumer_max_size: int = setting(int32(1), "most members of a consumer group", default=MAX_INT32)
    group_consumer_migration_policy: str = setting(
        Enumeration({name: name for name in _MIGRATION_POLICIES}, ignores_case=True),
        "whether groups with members change between the classic and the consumer protocol",
        default="bidirectional",
    )
    group_consumer_min_assignment_interval_ms: int = setting(
        int32(0), "shortest consumer.assignment.interval.ms of a group", default=0
    )
    group_consumer_min_heartbeat_interval_ms: int = setting(
        int32(1), "shortest consumer.heartbeat.interval.ms of a group", default=5000
    )
    group_consumer_min_session_timeout_ms: int = setting(
        int32(1), "shortest consumer.session.timeout.ms of a group", default=45_000
    )
    group_consumer_regex_refresh_interval_ms: int = setting(
        int32(10_000), "ms after which the regular expressions of a group are compared with all topics", default=600_000
    )
    group_consumer_session_timeout_ms: int = setting(
        int32(1), "ms of silence after which a member of a consumer group is removed", default=45_000
    )
    group_initial_rebalance_delay_ms: int = setting(
        int32(0), "ms that a new group waits for more members", default=3000
    )
    group_max_session_timeout_ms: int = setting(int32(1), "longest session.timeout.ms of a member", default=1_800_000)
    group_max_size: int = setting(int32(1), "most members of a group", default=MAX_INT32)
    group_min_session_timeout_ms: int = setting(int32(1), "shortest session.timeout.ms of a member", default=6000)
    inter_broker_listener_name: str = setting(
        Text(), "listener for other brokers; the first, if none is given", default=""
    )
    leader_imbalance_check_interval_seconds: int = setting(
        int64(1), "seconds between two checks for leaders that are not the preferred ones", default=300
    )
    leader_imbalance_per_broker_percentage: int = setting(
        int32(0, 100), "percent of its preferred partitions that a broker may lack; no limit in Kafka 4", default=10
    )
    listener_security_protocol_map: str = setting(
        Text(), "listener:protocol pairs", default=",".join(f"{name}:{name}" for name in PROTOCOLS)
    )
    listeners: tuple[Address, ...] = setting(
        Addresses(),
        "addresses to listen on; loopback by default, all interfaces in Kafka",
        default=(Address("PLAINTEXT", "127.0.0.1", 9092),),
    )
    log_dir: str = setting(Text(), "log directories, if log.dirs is not given", default="")
    log_dirs: str = setting(Text(), "log directories; a broker without a cluster has one", default="")
    max_connection_creation_rate: int = setting(
        int32(1), "new connections a second; more wait; unlimited in Kafka", default=500
    )
    max_connections: int = setting(int32(0), "most connections at a time; unlimited in Kafka", default=10_000)
    max_connections_per_ip: int = setting(int32(0), "most connections at a time from one address", default=MAX_INT32)
    max_incremental_fetch_session_cache_slots: int = setting(int32(0), "most fetch sessions", default=1000)
    max_request_partition_size_limit: int = setting(
        int32(1), "most partitions in a DescribeTopicPartitions response", default=2000
    )
    metrics_listener: str = setting(
        Text(),
        "HOST:PORT that serves metrics over HTTP, or SSL://HOST:PORT over HTTPS; only seglog has this key",
        default="",
    )
    node_id: int = setting(
        int32(0, also=-1), "id of this broker; -1: the id in the log directory, 1 in a new one", default=-1
    )
    offset_metadata_max_bytes: int = setting(int32(0), "most bytes of metadata with a committed offset", default=4096)
    offsets_commit_timeout_ms: int = setting(int32(1), "ms that an offset commit may take", default=5000)
    offsets_retention_check_interval_ms: int = setting(
        int64(1), "ms between two checks for expired offsets", default=600_000
    )
    offsets_retention_minutes: int = setting(
        int32(1), "minutes that the offsets of an empty group are kept", default=10_080
    )
    offsets_topic_compression_codec: int = setting(
        int32(0, 4), "codec of __consumer_offsets: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd", default=0
    )
    offsets_topic_num_partitions: int = setting(int32(1), "partitions of __consumer_offsets", default=50)
    offsets_topic_replication_factor: int = setting(
        int32(1), "replicas of __consumer_offsets, at most one on each broker; 3 in Kafka", default=1
    )
    offsets_topic_segment_bytes: int = setting(int32(1), "segment.bytes of __consumer_offsets", default=100 * 1024**2)
    queued_max_request_bytes: int = setting(
        int64(1, also=-1), "most bytes of large requests being received; -1: 256 MiB, unlimited in Kafka", default=-1
    )
    quota_window_num: int = setting(int32(1), "samples of the window of clients' quotas", default=11)
    quota_window_size_seconds: int = setting(int32(1), "seconds of each sample of clients' quotas", default=1)
    replica_fetch_backoff_ms: int = setting(int32(0), "ms that a follower waits after an error", default=1000)
    replica_fetch_max_bytes: int = setting(int32(0), "bytes that a follower asks for of one partition", default=1024**2)
    replica_fetch_min_bytes: int = setting(int32(0), "bytes that a follower waits for", default=1)
    replica_fetch_response_max_bytes: int = setting(
        int32(0), "bytes that a follower asks for in one request", default=10 * 1024**2
    )
    replica_fetch_wait_max_ms: int = setting(
        int32(0), "ms that a follower waits for replica.fetch.min.bytes", default=500
    )
    replica_lag_time_max_ms: int = setting(
        int64(1), "ms that a follower may lag before it leaves the ISR", default=30_000
    )
    replication_quota_window_num: int = setting(int32(1), "samples of the window of throttled replication", default=11)
    replication_quota_window_size_seconds: int = setting(
        int32(1), "seconds of each sample of throttled replication", default=1
    )
    replica_selector_class: str = setting(
        Text(),
        "replica that a consumer reads: the leader, or with RackAwareReplicaSelector one in its rack",
        default="",
    )
    replica_socket_timeout_ms: int = setting(
        int32(1), "ms that a follower waits for a response beyond replica.fetch.wait.max.ms", default=30_000
    )
    sasl_enabled_mechanisms: str = setting(
        Typed("list"), "mechanisms of SASL: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER", default="GSSAPI"
    )
    sasl_mechanism_inter_broker_protocol: str = setting(
        Text(), "mechanism by which brokers authenticate to each other", default="GSSAPI"
    )
    sasl_oauthbearer_allow_unverified_audience: bool = setting(
        Boolean(), "whether tokens need no audience, if none is expected", default=False
    )
    sasl_oauthbearer_allow_unverified_issuer: bool = setting(
        Boolean(), "whether tokens need no issuer, if none is expected", default=False
    )
    sasl_oauthbearer_client_credentials_client_id: str = setting(
        Text(), "this broker's id at sasl.oauthbearer.token.endpoint.url", default=""
    )
    sasl_oauthbearer_client_credentials_client_secret: str = setting(
        _PASSWORD, "its secret there", default="", is_secret=True
    )
    sasl_oauthbearer_clock_skew_seconds: int = setting(
        int32(0), "seconds by which the clock of the identity provider may differ", default=30
    )
    sasl_oauthbearer_expected_audience: str = setting(
        Typed("list"), "audiences of which a token must have one", default=""
    )
    sasl_oauthbearer_expected_issuer: str = setting(Text(), "issuer that a token must have", default="")
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = setting(
        int64(1), "ms after which the identity provider's keys are fetched again", default=3_600_000
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: int = setting(
        int64(0), "longest pause, in ms, before they are tried again", default=10_000
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: int = setting(
        int64(0), "pause, in ms, after the first failure to fetch them; it doubles", default=100
    )
    sasl_oauthbearer_jwks_endpoint_url: str = setting(
        Text(), "where these keys are: https://... or file:///...", default=""
    )
    sasl_oauthbearer_scope: str = setting(
        Text(), "scope of the token by which this broker authenticates to others", default=""
    )
    sasl_oauthbearer_scope_claim_name: str = setting(Text(), "claim with the scope of a token", default="scope")
    sasl_oauthbearer_sub_claim_name: str = setting(Text(), "claim with the name of the user", default="sub")
    sasl_oauthbearer_token_endpoint_url: str = setting(
        Text(), "where this broker gets its token for other brokers: https://... or file:///...", default=""
    )
    sasl_server_max_receive_size: int = setting(
        int32(1), "bytes of the largest request before authentication", default=512 * 1024
    )
    security_inter_broker_protocol: str = setting(
        Enumeration({name: name for name in PROTOCOLS}),
        "protocol, and name, of the listener for other brokers",
        default="PLAINTEXT",
    )
    seglog_insecure_listeners: bool = setting(
        Boolean(),
        "whether listeners beyond loopback may do without authentication, and PLAIN without TLS; only seglog has this "
        "key",
        default=False,
    )
    seglog_max_groups: int = setting(
        int32(1), "most groups that this broker coordinates; unlimited in Kafka", default=100_000
    )
    seglog_max_producers: int = setting(
        int32(1), "most producer ids that a partition remembers; unlimited in Kafka", default=100_000
    )
    seglog_max_transactional_ids: int = setting(
        int32(1), "most transactional ids that this broker coordinates; unlimited in Kafka", default=100_000
    )
    seglog_scram_users: str = setting(
        _PASSWORD,
        "name=password pairs: users that are created at the start, with all mechanisms of SCRAM, unless they exist",
        default="",
        is_secret=True,
    )
    socket_request_max_bytes: int = setting(int32(1), "bytes of the largest request", default=100 * 1024**2)
    super_users: str = setting(Text(), "principals that may do everything, such as User:ann;User:bob", default="")
    ssl_cipher_suites: str = setting(Typed("list"), "cipher suites of TLS; OpenSSL's defaults if empty", default="")
    ssl_client_auth: str = setting(
        Enumeration({name: name for name in ("required", "requested", "none")}, ignores_case=True),
        "whether clients must show a certificate",
        default="none",
    )
    ssl_enabled_protocols: str = setting(Typed("list"), "versions of TLS", default="TLSv1.2,TLSv1.3")
    ssl_endpoint_identification_algorithm: str = setting(
        Text(), "https: the certificates of other brokers must be for their host names", default="https"
    )
    ssl_key_password: str = setting(_PASSWORD, "password of the private key", default="", is_secret=True)
    ssl_keystore_certificate_chain: str = setting(
        _PASSWORD, "certificate chain of this broker as PEM, with ssl.keystore.key", default="", is_secret=True
    )
    ssl_keystore_key: str = setting(_PASSWORD, "private key of this broker as PEM", default="", is_secret=True)
    ssl_keystore_location: str = setting(
        Text(), "file with the private key and certificate chain of this broker: PEM or PKCS #12", default=""
    )
    ssl_keystore_password: str = setting(_PASSWORD, "password of a PKCS #12 file", default="", is_secret=True)
    ssl_keystore_type: str = setting(
        _STORE_TYPE, "type of ssl.keystore.location; the file itself tells PEM and PKCS #12 apart", default="JKS"
    )
    ssl_principal_mapping_rules: str = setting(
        Text(), "rules from the name in a client's certificate to its principal", default="DEFAULT"
    )
    ssl_protocol: str = setting(
        Enumeration({name: name for name in ("TLSv1.3", "TLSv1.2", "TLS")}),
        "newest version of TLS",
        default="TLSv1.3",
    )
    ssl_truststore_certificates: str = setting(
        _PASSWORD,
        "certificates of the CAs that sign clients' and brokers' certificates, as PEM",
        default="",
        is_secret=True,
    )
    ssl_truststore_location: str = setting(
        Text(), "file with the certificates of these CAs: PEM or PKCS #12", default=""
    )
    ssl_truststore_password: str = setting(_PASSWORD, "password of a PKCS #12 file", default="", is_secret=True)
    ssl_truststore_type: str = setting(
        _STORE_TYPE, "type of ssl.truststore.location; the file itself tells PEM and PKCS #12 apart", default="JKS"
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = setting(
        int32(1), "ms between two checks for transactions that have timed out", default=10_000
    )
    transaction_max_timeout_ms: int = setting(int32(1), "longest transaction.timeout.ms of a producer", default=900_000)
    transaction_partition_verification_enable: bool = setting(
        Boolean(), "whether a partition is verified to be in a transaction before it is written", default=True
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        int32(1), "ms between two checks for transactional ids that have expired", default=3_600_000
    )
    transaction_state_log_min_isr: int = setting(
        int32(1), "min.insync.replicas of __transaction_state, at most its replicas; 2 in Kafka", default=1
    )
    transaction_state_log_num_partitions: int = setting(int32(1), "partitions of __transaction_state", default=50)
    transaction_state_log_replication_factor: int = setting(
        int32(1), "replicas of __transaction_state, at most one on each broker; 3 in Kafka", default=1
    )
    transaction_state_log_segment_bytes: int = setting(
        int32(1), "segment.bytes of __transaction_state", default=100 * 1024**2
    )
    transactional_id_expiration_ms: int = setting(
        int32(1), "ms after which an unused transactional id is forgotten", default=604_800_000
    )
    zookeeper_clientCnxnSocket: str = setting(
        Enumeration({name: name for name in ("", CNXN_NETTY, CNXN_NIO)}),
        "of Kafka 3: class of connections to ZooKeeper; with TLS it must be that of Netty, or not given",
        default="",
    )
    zookeeper_set_acl: bool = setting(
        Boolean(), "whether only this user of ZooKeeper may change the nodes that it creates", default=False
    )
    zookeeper_ssl_cipher_suites: str = setting(Typed("list"), "ssl.cipher.suites for ZooKeeper", default="")
    zookeeper_ssl_client_enable: bool = setting(Boolean(), "whether connections to ZooKeeper use TLS", default=False)
    zookeeper_ssl_enabled_protocols: str = setting(
        Typed("list"), "versions of TLS for ZooKeeper; zookeeper.ssl.protocol, or all, if empty", default=""
    )
    zookeeper_ssl_endpoint_identification_algorithm: str = setting(
        Text(), "https: the certificates of ZooKeeper's servers must be for their host names", default="HTTPS"
    )
    zookeeper_ssl_keystore_location: str = setting(
        Text(), "file with the certificate by which ZooKeeper knows this broker: PEM or PKCS #12", default=""
    )
    zookeeper_ssl_keystore_password: str = setting(
        _PASSWORD, "password of a PKCS #12 file, or of the private key in a PEM file", default="", is_secret=True
    )
    zookeeper_ssl_keystore_type: str = setting(
        _STORE_TYPE_OR_NONE, "type of this file; the file itself tells PEM and PKCS #12 apart", default=""
    )
    zookeeper_ssl_protocol: str = setting(
        Enumeration({name: name for name in ("", "TLSv1.3", "TLSv1.2", "TLS")}),
        "version of TLS for ZooKeeper, without zookeeper.ssl.enabled.protocols",
        default="",
    )
    zookeeper_ssl_truststore_location: str = setting(
        Text(), "file with the CAs that sign certificates of ZooKeeper's servers: PEM or PKCS #12", default=""
    )
    zookeeper_ssl_truststore_password: str = setting(
        _PASSWORD, "password of a PKCS #12 file", default="", is_secret=True
    )
    zookeeper_ssl_truststore_type: str = setting(
        _STORE_TYPE_OR_NONE, "type of this file; the file itself tells PEM and PKCS #12 apart", default=""
    )
    directory: LogDirConfig = field(default_factory=LogDirConfig)
    listener_keys: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    given: Mapping[str, str] = field(default_factory=dict)
    without_effect: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check(self, _OWN.values())
        self._check_replication()
        self._check_authorizer()
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            raise InvalidConfigError("group.min.session.timeout.ms is greater than group.max.session.timeout.ms")
        self._check_consumer_groups()
        if 0 < self.queued_max_request_bytes < self.socket_request_max_bytes:
            raise InvalidConfigError("queued.max.request.bytes is smaller than socket.request.max.bytes")
        threads = self.directory.log_cleaner_threads
        if not threads or self.directory.log_cleaner_dedupe_buffer_size // threads <= 1 << 20:
            raise InvalidConfigError("log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread.")
        if self.metrics_listener:
            try:
                if parse_host_port(self.metrics_listener).name not in ("PLAINTEXT", "SSL"):
                    raise ValueError("HOST:PORT, or SSL://HOST:PORT")
            except ValueError as error:
                raise InvalidConfigError(
                    f"metrics.listener={self.metrics_listener!r} is not allowed: {error}"
                ) from error
        for listener in self.broker_listeners:
            if self.protocol(listener.name) not in PROTOCOLS:
                raise InvalidConfigError(
                    f"listeners={listener} is not allowed: {listener.name} has no protocol of Kafka's in "
                    "listener.security.protocol.map"
                )
        if not self.broker_listeners:
            raise InvalidConfigError("listeners: clients could use none of them")
        known = {listener.name for listener in self.listeners}
        for listener in self.advertised_listeners:
            if listener.name not in known:
                raise InvalidConfigError(f"advertised.listeners={listener} is not allowed: listeners has no such name")
            if listener.host and listener.host in WILDCARDS:
                raise InvalidConfigError(
                    f"advertised.listeners={listener} is not allowed: clients cannot connect to all interfaces; name "
                    "a host or an address of this machine"
                )
        if self.inter_broker_listener_name and "security.inter.broker.protocol" in self.given:
            raise InvalidConfigError(
                "Only one of inter.broker.listener.name and security.inter.broker.protocol should be set."
            )
        name = self.inter_broker_listener
        if name not in {listener.name for listener in self.broker_listeners}:
            key = "inter.broker.listener.name" if self.inter_broker_listener_name else "security.inter.broker.protocol"
            raise InvalidConfigError(f"{key}={name} is not allowed: listeners has no such name")

    @property
    def super_principals(self) -> frozenset[str]:
        """The principals of ``super.users``."""
        return frozenset(text for part in self.super_users.split(";") if (text := part.strip()))

    def _check_authorizer(self) -> None:
        if self.authorizer_class_name not in ("", STANDARD_AUTHORIZER):
            raise InvalidConfigError(
                f"authorizer.class.name={self.authorizer_class_name!r} is not allowed: seglog cannot load classes of "
                f"Java, it has its own {STANDARD_AUTHORIZER}"
            )
        for principal in sorted(self.super_principals):
            if ":" not in principal:
                raise InvalidConfigError(
                    f"super.users={self.super_users!r} is not allowed: {principal!r} has no type; write "
                    f"User:{principal}, with semicolons between principals"
                )

    def _check_consumer_groups(self) -> None:
        """Values that conflict (``GroupCoordinatorConfig``)."""
        for name in ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms"):
            attribute = name.replace(".", "_")
            low = getattr(self, f"group_consumer_min_{attribute}")
            high = getattr(self, f"group_consumer_max_{attribute}")
            value = getattr(self, f"group_consumer_{attribute}")
            if not low <= value <= high:
                raise InvalidConfigError(
                    f"group.consumer.{name}={value} is not allowed: group.consumer.min.{name}={low} to "
                    f"group.consumer.max.{name}={high}"
                )
        if self.group_consumer_heartbeat_interval_ms >= self.group_consumer_session_timeout_ms:
            raise InvalidConfigError(
                "group.consumer.heartbeat.interval.ms must be less than group.consumer.session.timeout.ms"
            )
        if not self.group_consumer_assignors:
            raise InvalidConfigError("group.consumer.assignors names no assignor")

    def _check_replication(self) -> None:
        """Values that conflict (``KafkaConfig.validateValues``)."""
        if self.replica_fetch_wait_max_ms > self.replica_lag_time_max_ms:
            raise InvalidConfigError(
                "replica.fetch.wait.max.ms should always be less than or equal to replica.lag.time.max.ms to prevent "
                "frequent changes in ISR"
            )
        if self.replica_selector_class not in ("", LEADER_SELECTOR, RACK_AWARE_SELECTOR):
            raise InvalidConfigError(
                f"replica.selector.class={self.replica_selector_class!r} is not allowed: {LEADER_SELECTOR}, "
                f"{RACK_AWARE_SELECTOR}"
            )

    def _protocol_pairs(self) -> list[str]:
        pairs = [pair for pair in self.listener_security_protocol_map.split(",") if pair.strip()]
        if not all(":" in pair for pair in pairs):
            raise InvalidConfigError(
                f"listener.security.protocol.map={self.listener_security_protocol_map!r} is not allowed: name:protocol"
            )
        return pairs

    def protocol(self, listener: str) -> str:
        """The protocol of a listener (`PROTOCOLS`), or its own name if the map does not have it."""
        protocols = dict(pair.strip().upper().split(":", 1) for pair in self._protocol_pairs())
        return protocols.get(listener, listener)

    @property
    def broker_listeners(self) -> list[Address]:
        """The listeners, without those of a controller."""
        left_out = {name.strip().upper() for name in self.controller_listener_names.split(",")}
        return [listener for listener in self.listeners if listener.name not in left_out]

    @property
    def reads_by_rack(self) -> bool:
        """Whether consumers read from a replica in their own rack (KIP-392)."""
        return self.replica_selector_class == RACK_AWARE_SELECTOR

    @property
    def inter_broker_listener(self) -> str:
        """The listener for other brokers: the named one, the one of ``security.inter.broker.protocol``, or the
        first."""
        if self.inter_broker_listener_name:
            return self.inter_broker_listener_name.upper()
        if "security.inter.broker.protocol" in self.given:
            return self.security_inter_broker_protocol
        return self.broker_listeners[0].name

    @property
    def data_dirs(self) -> tuple[str, ...]:
        """The log directories; empty if neither key is given."""
        given = self.log_dirs.strip(", ") or self.log_dir
        return tuple(path.strip() for path in given.split(",") if path.strip())

    @property
    def data_dir(self) -> str:
        """The log directory of a broker without a cluster. `InvalidConfigError` if there are several."""
        if len(self.data_dirs) > 1:
            raise InvalidConfigError(
                f"log.dirs={','.join(self.data_dirs)!r} is not allowed: a broker without a cluster has one log "
                "directory. Give it one, or let it join a cluster (cluster.store)"
            )
        return self.data_dirs[0] if self.data_dirs else ""

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object]) -> BrokerConfig:
        """The configuration with these keys. Raises `InvalidConfigError` for an invalid value, and for a key that
        should protect something but cannot. An unknown key becomes a note."""
        given: dict[str, str] = {}
        without_effect: dict[str, str] = {}
        own: dict[str, Any] = {}
        directory: dict[str, object] = {}
        notes = []
        passed_over = []
        of_listeners: dict[str, dict[str, str]] = {}
        for name, value in mapping.items():
            found = listener_key(name)
            if found is not None:
                listener, key, rule = found
                given[name] = of_listeners.setdefault(listener, {})[key] = rule.rule.format(rule.parse(value))
                continue
            row = BROKER_KEYS.get(name)
            if row is None:
                known = kafka_only_keys().get(name)
                why = refusal(name, value)
                if why is not None:
                    raise InvalidConfigError(why)
                if known is not None:
                    without_effect[name] = known.rule.format(known.parse(value))
                if known is not None or _PASSED_OVER.match(name):
                    passed_over.append(name)
                elif name not in REFUSED:
                    notes.append(str(unknown(name, BROKER_KEYS, "broker configuration")))
                continue
            if name in _OWN:
                own[row.attribute] = row.parse(value)
            else:
                directory[name] = value
            given[name] = row.rule.format(row.parse(value))
        if passed_over:
            notes.append(f"Kafka keys without effect here: {', '.join(sorted(passed_over))}")
        return cls(
            directory=LogDirConfig.from_mapping(directory),
            listener_keys=of_listeners,
            given=given,
            without_effect=without_effect,
            notes=tuple(notes),
            **own,
        )


_LISTENER_KEY: Final = re.compile(r"listener\.name\.([a-z0-9_-]+)\.(.+)")
CREATION_RATE: Final = "max.connection.creation.rate"
OWN_KEYS_OF_LISTENERS: Final = frozenset(
    {
        "connections.max.reauth.ms",
        "max.connection.creation.rate",
        "sasl.enabled.mechanisms",
        "sasl.oauthbearer.allow.unverified.audience",
        "sasl.oauthbearer.allow.unverified.issuer",
        "sasl.oauthbearer.client.credentials.client.id",
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.clock.skew.seconds",
        "sasl.oauthbearer.expected.audience",
        "sasl.oauthbearer.expected.issuer",
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        "sasl.oauthbearer.jwks.endpoint.url",
        "sasl.oauthbearer.scope",
        "sasl.oauthbearer.scope.claim.name",
        "sasl.oauthbearer.sub.claim.name",
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.server.max.receive.size",
        "ssl.cipher.suites",
        "ssl.client.auth",
        "ssl.enabled.protocols",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.password",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.type",
        "ssl.principal.mapping.rules",
        "ssl.protocol",
        "ssl.truststore.certificates",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.type",
    }
)
"""Keys of the broker that a listener may have of its own, as ``listener.name.<listener>.<key>``."""
OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", OAUTHBEARER)
"""The mechanisms of SASL that the broker has."""
JAAS: Final = "sasl.jaas.config"
_REAUTH: Final = "connections.max.reauth.ms"
_JAAS_ROW: Final = Setting(JAAS, _PASSWORD, "", "the login module of a mechanism", "", is_secret=True)
HANDLER_CLASS: Final = "sasl.server.callback.handler.class"
_OAUTH_PACKAGE: Final = "org.apache.kafka.common.security.oauthbearer"
UNSECURED_HANDLER: Final = f"{_OAUTH_PACKAGE}.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
_HANDLERS: Final = (
    f"{_OAUTH_PACKAGE}.OAuthBearerValidatorCallbackHandler",
    f"{_OAUTH_PACKAGE}.secured.OAuthBearerValidatorCallbackHandler",
    UNSECURED_HANDLER,
)
"""Classes of Kafka whose effect OAUTHBEARER has here: the first, which is the default, and its old name; and tokens
without signatures."""
LOGIN_CLASS: Final = "sasl.login.callback.handler.class"
_LOGINS: Final = tuple(
    f"{_OAUTH_PACKAGE}.{name}"
    for name in ("OAuthBearerLoginCallbackHandler", "secured.OAuthBearerLoginCallbackHandler")
)
_LOGIN_ROW: Final = Setting(
    LOGIN_CLASS, Enumeration({name: name for name in _LOGINS}), _LOGINS[0], "how this broker gets its token", ""
)
_HANDLER_ROW: Final = Setting(
    HANDLER_CLASS, Enumeration({name: name for name in _HANDLERS}), _HANDLERS[0], "how tokens are verified", ""
)
_MECHANISM_ROWS: Final[Mapping[str, Setting | None]] = {
    **{f"{mechanism.lower()}.{JAAS}": _JAAS_ROW for mechanism in MECHANISMS},
    f"{OAUTHBEARER.lower()}.{HANDLER_CLASS}": _HANDLER_ROW,
    f"{OAUTHBEARER.lower()}.{LOGIN_CLASS}": _LOGIN_ROW,
    **{f"{mechanism.lower()}.{_REAUTH}": None for mechanism in MECHANISMS},
    **{f"{OAUTHBEARER.lower()}.{key}": None for key in OWN_KEYS_OF_LISTENERS if key.startswith("sasl.oauthbearer.")},
}
"""``listener.name.<listener>.<mechanism>.<key>``, with their rows; None: as the broker's."""


def listener_key(name: str) -> tuple[str, str, Setting] | None:
    """The listener, the key and its row, if ``name`` is a listener's own key that has an effect
    (``listener.name.<listener>.<key>``). `InvalidConfigError` if the listener would rely on something that seglog
    lacks."""
    match = _LISTENER_KEY.fullmatch(name)
    if match is None:
        return None
    listener, key = match[1].upper(), match[2]
    if key.endswith(tuple(_CLASS_KEYS)) and key not in _MECHANISM_ROWS:
        raise InvalidConfigError(f"{name} is not allowed: {_NO_CLASSES}")
    if key in OWN_KEYS_OF_LISTENERS:
        row = BROKER_KEYS[key]
    elif key in _MECHANISM_ROWS:
        row = _MECHANISM_ROWS[key] or BROKER_KEYS[key.partition(".")[2]]
    elif key == JAAS:
        raise InvalidConfigError(f"{name} is not allowed: name the mechanism, as in {match[1]}.plain.{JAAS}")
    else:
        return None
    return listener, key, replace(row, name=name)


_OWN: Final = settings_of(BrokerConfig)
BROKER_KEYS: Final[dict[str, Setting]] = dict(sorted({**DIRECTORY_KEYS, **_OWN}.items()))
"""All keys of `BrokerConfig.from_mapping`, by name."""

_NULL_DEFAULTS: Final = frozenset(row.name for rows in SYNONYMS.values() for row in rows[:-1])


def default_text(row: Setting) -> str | None:
    """A key's default as a text; None if a synonym has the default (``log.retention.ms``)."""
    if row.name in _NULL_DEFAULTS:
        return None
    return str(row.default) if isinstance(row.rule, ScaledInteger) else row.rule.format(row.default)


DYNAMIC_KEYS: Final = frozenset(
    {
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.type",
        "compression.zstd.level",
        "group.consumer.assignment.interval.ms",
        "log.cleaner.backoff.ms",
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.delete.retention.ms",
        "log.cleaner.io.buffer.load.factor",
        "log.cleaner.io.buffer.size",
        "log.cleaner.io.max.bytes.per.second",
        "log.cleaner.max.compaction.lag.ms",
        "log.cleaner.min.cleanable.ratio",
        "log.cleaner.min.compaction.lag.ms",
        "log.cleaner.threads",
        "log.cleanup.policy",
        "log.flush.interval.messages",
        "log.flush.interval.ms",
        "log.index.interval.bytes",
        "log.index.size.max.bytes",
        "log.message.timestamp.after.max.ms",
        "log.message.timestamp.before.max.ms",
        "log.message.timestamp.type",
        "log.preallocate",
        "log.retention.bytes",
        "log.retention.ms",
        "log.roll.jitter.ms",
        "log.roll.ms",
        "log.segment.bytes",
        "log.segment.delete.delay.ms",
        "max.connection.creation.rate",
        "max.connections",
        "max.connections.per.ip",
        "max.decompressed.message.bytes",
        "message.max.bytes",
        "min.insync.replicas",
        "num.recovery.threads.per.data.dir",
        "producer.id.expiration.ms",
        "transaction.partition.verification.enable",
        "unclean.leader.election.enable",
    }
)
"""Keys that may change while the broker runs: those of Kafka's ``ALL_DYNAMIC_CONFIGS`` that are served here."""

DYNAMIC_ONLY_KEYS: Final[Mapping[str, Setting]] = {
    name: Setting(name, int64(0), MAX_INT64, f"most bytes a second of throttled replicas that this broker {what}", "")
    for name, what in (
        ("leader.replication.throttled.rate", "leads"),
        ("follower.replication.throttled.rate", "follows"),
    )
}
"""Keys that have an effect only if they are set while the broker runs."""

LISTENER_DYNAMIC_KEYS: Final = frozenset(
    {
        "sasl.enabled.mechanisms",
        "sasl.mechanism.inter.broker.protocol",
        *(key for key in OWN_KEYS_OF_LISTENERS if key.startswith("ssl.") and key != "ssl.principal.mapping.rules"),
    }
)
"""Keys that may change while the broker runs, with the prefix of a listener only."""

_NO_CRLS: Final = "seglog does not check whether certificates are revoked"
_NO_CLASSES: Final = "seglog cannot load classes of Java"
_CLASS_KEYS: Final = (
    "principal.builder.class",
    "sasl.server.callback.handler.class",
    "ssl.engine.factory.class",
)
REFUSED: Final[Mapping[str, str]] = {
    **dict.fromkeys(_CLASS_KEYS, _NO_CLASSES),
    "remote.log.storage.system.enable": "seglog has no tiered storage",
    "zookeeper.ssl.crl.enable": _NO_CRLS,
    "zookeeper.ssl.ocsp.enable": _NO_CRLS,
    "cordoned.log.dirs": "seglog does not keep new replicas out of a log directory",
    "replica.alter.log.dirs.io.max.bytes.per.second": "seglog moves no replicas between log directories",
}
"""Keys of Kafka whose user would rely on an effect that they cannot have here."""


def refusal(name: str, value: object) -> str | None:
    """Why this value of a key of Kafka is refused; None if it is not, as is the default."""
    text = str(value).strip()
    known = kafka_only_keys().get(name)
    is_off = text.lower() in ("", "false")
    if name not in REFUSED or is_off or text == (None if known is None else known.default):
        return None
    return f"{name}={text!r} is not allowed: {REFUSED[name]}"


_PASSED_OVER: Final = re.compile(
    r"(add\.partitions\.to\.txn|alter\.(config|log)|background\.threads|broker\.heartbeat|"
    r"client\.quota|config\.providers|connection\.failed|connections\.max\.reauth|controlled\.shutdown|"
    r"controller\.|cordoned\.|create\.topic\.policy|delegation\.token|early\.start|"
    r"(delete\.records|(share\.)?fetch|producer)\.purgatory|follower\.|leader\.|group\.(consumer|coordinator|share|streams)\.|"
    r"initial\.broker|inter\.broker|kafka\.|listener\.name\.|log\.dir\.failure|log\.local\.|log4j|"
    r"max\.connections\.per\.ip\.overrides|metadata\.|metric|metrics\.|"
    r"num\.(io|network|replica)\.|offsets\.load|password\.encoder|principal\.builder|"
    r"process\.roles|queued\.max\.requests|quorum|quota\.|remote\.|replica\.|replication\.|request\.timeout|"
    r"reserved\.|sasl\.|security\.|server\.max|share\.coordinator|socket\.(connection|listen|receive|send)|ssl\.|"
    r"telemetry|transaction(al)?\.|unclean\.leader|unstable\.|zookeeper\.|internal\.)"
)
"""Kafka's keys without effect here. They are accepted, so that a broker's properties file can be used unchanged."""

_ENVIRONMENT: Final = "KAFKA_"
_NOT_KEYS: Final = re.compile(r"KAFKA_(.*_OPTS|LOG4J_.*|JMX_.*|HOME|VERSION|GC_.*|MODE|DEBUG|CLUSTER_ID|USER|.*_CMD)")


def keys_of_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Keys from variables as the image apache/kafka has them: ``KAFKA_LOG_DIRS`` is ``log.dirs``.

    >>> keys_of_environment({"KAFKA_NUM_PARTITIONS": "3", "KAFKA_HEAP_OPTS": "-Xmx1g", "HOME": "/"})
    {'num.partitions': '3'}
    """
    return {
        name[len(_ENVIRONMENT) :]
        .lower()
        .replace("___", "-")
        .replace("__", "\0")
        .replace("_", ".")
        .replace("\0", "_"): value
        for name, value in environment.items()
        if name.startswith(_ENVIRONMENT) and not _NOT_KEYS.fullmatch(name)
    }
