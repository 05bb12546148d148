"""Requests and responses in one shape for all versions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, Final

from seglog.protocol.apis import APIS, ApiKey
from seglog.protocol.created_topics import write_created_topics
from seglog.protocol.message_reader import Message, read_message
from seglog.protocol.message_writer import write_message
from seglog.protocol.schema import request_class, response_class

Answer = Mapping[str, Any]


def from_older(key: int, version: int, request: Message) -> Message:
    """The request in the shape of the newest version."""
    change = _REQUESTS.get(key)
    if change is not None and version < change[0]:
        change[1](request, version)
    return request


def to_older(key: int, version: int, answer: Answer) -> Answer:
    """An answer of the newest shape, as ``version`` has it."""
    change = _RESPONSES.get(key)
    return change[1](answer, version) if change is not None and version < change[0] else answer


def _find_coordinator(request: Message, _: int) -> None:
    request.coordinator_keys = (request.key,)


def _offset_fetch(request: Message, _: int) -> None:
    topics = request.topics
    request.groups = (Message(group_id=request.group_id, member_id=None, member_epoch=-1, topics=topics),)


def _leave_group(request: Message, _: int) -> None:
    request.members = (Message(member_id=request.member_id, group_instance_id=None, reason=None),)


def _delete_topics(request: Message, _: int) -> None:
    request.topics = tuple(Message(name=name, topic_id=None) for name in request.topic_names)


def _metadata(request: Message, version: int) -> None:
    if version == 0 and not request.topics:
        request.topics = None  # no topics meant all of them


def _add_partitions_to_txn(request: Message, _: int) -> None:
    request.transactions = (
        Message(
            transactional_id=request.v3_and_below_transactional_id,
            producer_id=request.v3_and_below_producer_id,
            producer_epoch=request.v3_and_below_producer_epoch,
            verify_only=False,
            topics=request.v3_and_below_topics,
        ),
    )


def _txn_offset_commit(request: Message, _: int) -> None:
    request.generation_id_or_member_epoch = getattr(request, "generation_id", -1)


_REQUESTS: Final[Mapping[int, tuple[int, Callable[[Message, int], None]]]] = {
    ApiKey.METADATA: (1, _metadata),
    ApiKey.OFFSET_FETCH: (8, _offset_fetch),
    ApiKey.FIND_COORDINATOR: (4, _find_coordinator),
    ApiKey.ADD_PARTITIONS_TO_TXN: (4, _add_partitions_to_txn),
    ApiKey.LEAVE_GROUP: (3, _leave_group),
    ApiKey.TXN_OFFSET_COMMIT: (6, _txn_offset_commit),
    ApiKey.DELETE_TOPICS: (6, _delete_topics),
}
"""By API: the first version with the new shape, and the function that converts older ones."""


def _one_coordinator(answer: Answer, _: int) -> Answer:
    (coordinator,) = answer["coordinators"]
    return {**answer, **coordinator}


def _one_group(answer: Answer, version: int) -> Answer:
    """Before version 2 only partitions have an error code: each gets the group's."""
    (group,) = answer["groups"]
    code = group.get("error_code", 0)
    topics = group["topics"]
    if version < 2 and code:
        topics = [
            {**topic, "partitions": [{**partition, "error_code": code} for partition in topic["partitions"]]}
            for topic in topics
        ]
    return {**answer, "topics": topics, "error_code": code}


def _one_member(answer: Answer, _: int) -> Answer:
    code = answer.get("error_code", 0)
    members = answer.get("members", ())
    return {**answer, "error_code": code or (members[0]["error_code"] if members else 0)}


def _one_transaction(answer: Answer, _: int) -> Answer:
    (transaction,) = answer["results_by_transaction"]
    return {**answer, "results_by_topic_v3_and_below": transaction["topic_results"]}


_RESPONSES: Final[Mapping[int, tuple[int, Callable[[Answer, int], Answer]]]] = {
    ApiKey.OFFSET_FETCH: (8, _one_group),
    ApiKey.FIND_COORDINATOR: (4, _one_coordinator),
    ApiKey.ADD_PARTITIONS_TO_TXN: (4, _one_transaction),
    ApiKey.LEAVE_GROUP: (3, _one_member),
}


__all__ = ["Message", "read_answer", "read_request", "write_request", "write_response"]


def read_request(key: int, version: int, data: bytes | bytearray | memoryview, position: int = 0) -> Message:
    """Decode the body of a request, from ``position`` to the end of ``data``, into the shape of the newest version.

    Raises `InvalidRequestError`, whatever the bytes are, and nothing else.
    """
    newest = request_class(key, APIS[key].high)
    return from_older(key, version, read_message(request_class(key, version), newest, data, position))


def write_response(key: int, version: int, answer: Mapping[str, Any]) -> bytes:
    """Encode the body of a response; ``answer`` has the shape of the newest version."""
    if key == ApiKey.CREATE_TOPICS:
        return write_created_topics(version, answer)
    return write_message(response_class(key, version), to_older(key, version, answer))


def write_request(key: int, version: int, request: Mapping[str, Any]) -> bytes:
    """The body of a request of this broker's own."""
    return write_message(request_class(key, version), request)


def read_answer(key: int, version: int, data: bytes | bytearray | memoryview) -> Message:
    """The body of the response to a request of this broker's own. `InvalidRequestError`, whatever the bytes are."""
    message = response_class(key, version)
    return read_message(message, message, data, 0)


def as_mapping(value: Any) -> Any:
    """A decoded message as mappings, which `write_message` takes."""
    if isinstance(value, SimpleNamespace):
        return {name: as_mapping(one) for name, one in vars(value).items()}
    if isinstance(value, tuple | list):
        return tuple(as_mapping(one) for one in value)
    return value
