"""Reassignments of replicas (KIP-455): AlterPartitionReassignments, ListPartitionReassignments. Rules and messages are
those of ``ReplicationControlManager.alterPartitionReassignments``. UnregisterBroker reassigns all replicas of a broker
that has stopped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from seglog.broker.apis.partition_states import Brokers, Decide, PartitionStates
from seglog.broker.identity import Identity
from seglog.broker.offload import in_turns
from seglog.broker.requests import Answer, ApiError, ApiHandler, RequestContext, failure
from seglog.broker.topics.topic_validation import check_replicas
from seglog.broker.topics.topics import Topics
from seglog.cluster.election import cancel_reassignment, reassign, settle
from seglog.cluster.model import PartitionState, TopicRules
from seglog.cluster.reassignment_plan import ReplicaMove, evacuate
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import SeglogError
from seglog.protocol.apis import ApiKey
from seglog.protocol.messages import Message

Place = tuple[str, int]


class ReassignmentApis:
    def __init__(self, states: PartitionStates, topics: Topics, identity: Identity) -> None:
        self._states = states
        self._topics = topics
        self._identity = identity

    def handlers(self) -> Mapping[int, ApiHandler]:
        return {
            ApiKey.ALTER_PARTITION_REASSIGNMENTS: self.alter_partition_reassignments,
            ApiKey.LIST_PARTITION_REASSIGNMENTS: self.list_partition_reassignments,
            ApiKey.UNREGISTER_BROKER: self.unregister_broker,
        }

    # AlterPartitionReassignments

    async def alter_partition_reassignments(self, request: Message, context: RequestContext) -> Answer:
        may_change = context.version < 1 or request.allow_replication_factor_change
        targets = {
            (topic.name, partition.partition_index): partition.replicas
            async for topic in in_turns(request.topics)
            async for partition in in_turns(topic.partitions)
        }
        refused = await self._reassign(targets, may_change=may_change)
        return {
            "allow_replication_factor_change": may_change,
            "responses": [
                {
                    "name": topic.name,
                    "partitions": [
                        _answer(partition.partition_index, refused.get((topic.name, partition.partition_index)))
                        async for partition in in_turns(topic.partitions)
                    ],
                }
                async for topic in in_turns(request.topics)
            ],
        }

    async def _reassign(
        self, targets: Mapping[Place, Sequence[int] | None], *, may_change: bool
    ) -> dict[Place, SeglogError]:
        """Begin to move these partitions, or cancel their moves; returns the errors of those that were refused."""
        keys: dict[Place, tuple[UUID, int]] = {}
        wanted: dict[tuple[UUID, int], Decide] = {}
        refused: dict[Place, SeglogError] = {}
        async for named, target in in_turns(targets.items()):
            try:
                keys[named] = self._key(*named)
                wanted[keys[named]] = self._decision(*named, target, may_change=may_change)
            except SeglogError as error:
                refused[named] = error
        of_states = await self._states.change(wanted)
        return refused | {named: of_states[key] for named, key in keys.items() if key in of_states}

    def _key(self, name: str, number: int) -> tuple[UUID, int]:
        topic = self._topics.by_name.get(name)
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
        if not self._topics.has(name, number):
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{number}.")
        return topic.topic_id, number

    def _decision(self, name: str, number: int, target: Sequence[int] | None, *, may_change: bool) -> Decide:
        """The state change that moves a partition to the ``target`` replicas; None cancels its reassignment."""

        def cancel(state: PartitionState, brokers: Brokers, rules: TopicRules) -> PartitionState:
            if not (state.adding or state.removing):
                raise ApiError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
            try:
                back = cancel_reassignment(state)
            except ValueError as error:
                if not rules.unclean:
                    message = (
                        f"Unable to revert partition assignment for {name}:{number} because it would require an "
                        "unclean leader election."
                    )
                    raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message) from error
                back = cancel_reassignment(state, unclean=True)
            return settle(back, brokers, min_insync=rules.min_insync, unclean=rules.unclean)

        def move(state: PartitionState, brokers: Brokers, rules: TopicRules) -> PartitionState:
            assert target is not None
            check_replicas(target, self._identity, None, now=state.replicas)
            if not may_change:
                now = len(set(state.replicas) - set(state.removing))
                if now != len(target):
                    message = f"The replication factor is changed from {now} to {len(target)}"
                    raise ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, message)
            moved = reassign(state, tuple(target))
            return settle(moved, brokers, min_insync=rules.min_insync, unclean=rules.unclean)

        return cancel if target is None else move

    # ListPartitionReassignments

    async def list_partition_reassignments(self, request: Message, _: RequestContext) -> Answer:
        asked: Iterable[tuple[str, Iterable[int]]]
        if request.topics is None:
            asked = [(topic.name, range(len(topic.partitions))) for topic in self._topics]
        else:
            asked = [(topic.name, topic.partition_indexes) for topic in request.topics]
        topics = []
        async for name, numbers in in_turns(asked):
            found = [moving async for number in in_turns(numbers) if (moving := self._moving(name, number)) is not None]
            if found:
                topics.append({"name": name, "partitions": found})
        return {"topics": topics}

    def _moving(self, name: str, number: int) -> dict[str, Any] | None:
        topic = self._topics.by_name.get(name)
        state = None if topic is None else self._states.of(topic, number)
        if state is None or not (state.adding or state.removing):
            return None
        return {
            "partition_index": number,
            "replicas": state.replicas,
            "adding_replicas": state.adding,
            "removing_replicas": state.removing,
        }

    # UnregisterBroker

    async def unregister_broker(self, request: Message, _: RequestContext) -> Answer:
        """Begin to move all replicas off a broker that has stopped. Its registration ended with its session, so
        nothing else is left of it."""
        node = request.broker_id
        try:
            moves = self._evacuation(node)
            refused = await self._reassign({move.place: move.after for move in moves}, may_change=False)
        except SeglogError as error:
            return failure(error)
        for (name, number), why in refused.items():
            return failure(ApiError(why.code, f"{name}-{number} keeps its replica on broker {node}: {why}"))
        return {"error_code": 0, "error_message": ""}

    def _evacuation(self, node: int) -> Sequence[ReplicaMove]:
        """The moves that have not begun yet. `ApiError` for a broker that runs, and for one without any replica."""
        if node in self._identity.registered():
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Broker {node} is running: stop it first.")
        states = {
            (topic.name, number): state
            for topic in self._topics
            for number in range(len(topic.partitions))
            if (state := self._states.of(topic, number)) is not None
        }
        if not any(node in state.replicas for state in states.values()):
            raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {node} is not currently registered")
        after = {
            place: tuple(one for one in state.replicas if one not in state.removing) for place, state in states.items()
        }
        return evacuate(after, self._identity.racks(), node)


def _answer(number: int, error: SeglogError | None) -> dict[str, Any]:
    return {"partition_index": number, **({} if error is None else failure(error))}
