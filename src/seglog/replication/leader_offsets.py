"""Asks a leader where its logs begin and end, for a follower whose log end lies outside
(``fetchOffsetAndTruncate``)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from seglog.core.errors import InvalidRequestError
from seglog.core.types import TopicPartition
from seglog.net.peer_connection import PeerConnection
from seglog.protocol.apis import ApiKey
from seglog.protocol.message_reader import read_message
from seglog.protocol.message_writer import write_message
from seglog.protocol.schema import request_class, response_class

_VERSION: Final = 8
_EARLIEST: Final = -2
_LATEST: Final = -1
_TIMES: Final = (_EARLIEST, _LATEST)


class LeaderOffsets(NamedTuple):
    """``end`` is the log end, because a replica asks; ``error`` is an error code of Kafka's, 0 for none."""

    error: int
    start: int
    end: int


async def ask_offsets(
    link: PeerConnection, node_id: int, wanted: Sequence[tuple[TopicPartition, int]], *, timeout: float
) -> Mapping[TopicPartition, LeaderOffsets]:
    """Return the offsets of each partition in ``wanted``, given with the leader epoch in which it is followed. Raises
    what `Link.ask` raises, and `InvalidRequestError` if the leader does not answer the request."""
    answers = await asyncio.gather(
        *[link.ask(ApiKey.LIST_OFFSETS, _VERSION, _request(node_id, wanted, time), timeout=timeout) for time in _TIMES]
    )
    names = [partition for partition, _ in wanted]
    earliest, latest = [_read(answer, names) for answer in answers]
    return {
        name: LeaderOffsets(earliest[name][0] or latest[name][0], earliest[name][1], latest[name][1]) for name in names
    }


def _request(node_id: int, wanted: Iterable[tuple[TopicPartition, int]], time: int) -> bytes:
    topics: dict[str, list[dict[str, int]]] = {}
    for (topic, number), epoch in wanted:
        asked = {"partition_index": number, "current_leader_epoch": epoch, "timestamp": time}
        topics.setdefault(topic, []).append(asked)
    contents = {
        "replica_id": node_id,
        "isolation_level": 0,
        "topics": [{"name": topic, "partitions": partitions} for topic, partitions in topics.items()],
    }
    return write_message(request_class(ApiKey.LIST_OFFSETS, _VERSION), contents)


def _read(answer: memoryview, names: Iterable[TopicPartition]) -> Mapping[TopicPartition, tuple[int, int]]:
    """Return the error and offset of each partition."""
    schema = response_class(ApiKey.LIST_OFFSETS, _VERSION)
    found = {
        TopicPartition(topic.name, partition.partition_index): (partition.error_code, partition.offset)
        for topic in read_message(schema, schema, answer, 0).topics
        for partition in topic.partitions
    }
    for name in names:
        error, offset = found.get(name, (0, -1))
        if not error and offset < 0:
            raise InvalidRequestError(f"no offset of {name}")
    return found
