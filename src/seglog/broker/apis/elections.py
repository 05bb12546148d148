"""ElectLeaders. Rules and messages are those of ``ReplicationControlManager.electLeaders``."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any
from uuid import UUID

from seglog.broker.apis.partition_states import Brokers, Decide, PartitionStates
from seglog.broker.offload import in_turns
from seglog.broker.requests import Answer, ApiError, ApiHandler, RequestContext, failure
from seglog.broker.topics.topics import Topics
from seglog.cluster.election import prefer, settle
from seglog.cluster.model import NO_LEADER, PartitionState, TopicRules
from seglog.core.error_codes import ErrorCode
from seglog.protocol.apis import ApiKey
from seglog.protocol.messages import Message


class ElectionType(IntEnum):
    """KIP-460: elect the first replica in sync, or if there is no leader, any live replica."""

    PREFERRED = 0
    UNCLEAN = 1


class ElectionApis:
    """Answers ElectLeaders."""

    def __init__(self, states: PartitionStates, topics: Topics) -> None:
        self._states = states
        self._topics = topics

    def handlers(self) -> Mapping[int, ApiHandler]:
        return {ApiKey.ELECT_LEADERS: self.elect_leaders}

    async def elect_leaders(self, request: Message, context: RequestContext) -> Answer:
        asked = [(topic.topic, tuple(topic.partitions)) for topic in request.topic_partitions or ()]
        kind = request.election_type if context.version >= 1 else ElectionType.PREFERRED
        if kind not in set(ElectionType):
            refusal = {"error_code": ErrorCode.INVALID_REQUEST, "error_message": f"Unknown election type {kind}"}
            results = [_result(name, [{"partition_id": one, **refusal} for one in numbers]) for name, numbers in asked]
            return {"error_code": ErrorCode.INVALID_REQUEST, "replica_election_results": results}
        is_all = request.topic_partitions is None
        if is_all:
            asked = [(topic.name, tuple(range(len(topic.partitions)))) for topic in self._topics]
        decide = _prefer if kind == ElectionType.PREFERRED else _elect_unclean
        wanted: dict[tuple[UUID, int], Decide] = {}
        for name, numbers in asked:
            topic = self._topics.by_name.get(name)
            if topic is not None:
                there = range(len(topic.partitions))
                wanted.update(((topic.topic_id, number), decide) for number in numbers if number in there)
        refused = {key: failure(error) for key, error in (await self._states.change(wanted)).items()}
        results = []
        async for name, numbers in in_turns(asked):
            topic = self._topics.by_name.get(name)
            answers: list[dict[str, Any]] = []
            async for number in in_turns(numbers):
                if topic is None:
                    answer = _unknown(f"No such topic as {name}")
                elif (topic.topic_id, number) not in wanted:
                    answer = _unknown(f"No such partition as {name}-{number}")
                else:
                    answer = refused.get((topic.topic_id, number), {})
                if not is_all or answer.get("error_code") != ErrorCode.ELECTION_NOT_NEEDED:
                    answers.append({"partition_id": number, **answer})
            results.append(_result(name, answers))
        return {"replica_election_results": results}


def _result(name: str, answers: list[dict[str, Any]]) -> dict[str, Any]:
    return {"topic": name, "partition_result": answers}


def _unknown(message: str) -> dict[str, Any]:
    return {"error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "error_message": message}


def _prefer(state: PartitionState, brokers: Brokers, rules: TopicRules) -> PartitionState:
    if state.leader == state.replicas[0]:
        raise _not_needed()
    changed = prefer(settle(state, brokers, min_insync=rules.min_insync, unclean=False), brokers)
    if changed.leader == state.leader:
        raise ApiError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available.")
    return changed


def _elect_unclean(state: PartitionState, brokers: Brokers, rules: TopicRules) -> PartitionState:
    if state.leader != NO_LEADER:
        raise _not_needed()
    changed = settle(state, brokers, min_insync=rules.min_insync, unclean=True)
    if changed.leader == NO_LEADER:
        message = "Eligible topic partition leaders are not available."
        raise ApiError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, message)
    return changed


def _not_needed() -> ApiError:
    return ApiError(ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
