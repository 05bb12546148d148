"""Produce and Fetch by hand against kio, in every version."""

from __future__ import annotations

import random
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.serial import entity_reader

from seglog.core.errors import InvalidRequestError
from seglog.protocol import fetch, produce
from seglog.protocol.apis import APIS, ApiKey
from seglog.protocol.message_writer import write_message
from seglog.protocol.schema import request_class, response_class
from seglog.protocol.wire import NodeEndpoint
from tests.cases import case

PRODUCE = APIS[ApiKey.PRODUCE]
FETCH = APIS[ApiKey.FETCH]
CASES = 50
_LEADER = ("leader_id", "leader_epoch")


class Bytes(NamedTuple):
    """A slice that is at hand."""

    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)

    def read_part(self, start: int, size: int) -> bytes:
        return self.data[start : start + size]


def topic_of(version: int, first_with_ids: int, rng: random.Random) -> str | UUID:
    return UUID(int=rng.getrandbits(127) + 1) if version >= first_with_ids else rng.choice(["t", "flights", "é" * 60])


def named(topic: str | UUID) -> dict[str, object]:
    return {"topic_id": topic} if isinstance(topic, UUID) else {"name": topic, "topic": topic}


@pytest.mark.parametrize("version", range(PRODUCE.served, PRODUCE.high + 1))
def test_produce_requests(version: int) -> None:
    for seed in range(CASES):
        case()
        rng = random.Random(seed)
        topics = [
            produce.TopicData(
                topic_of(version, produce.TOPIC_IDS, rng),
                [
                    produce.PartitionData(number, memoryview(rng.randbytes(rng.randrange(300))))
                    for number in range(rng.randrange(3))
                ],
            )
            for _ in range(rng.randrange(200) if seed == 0 else rng.randrange(3))
        ]
        transactional_id, acks = rng.choice([None, "txn"]), rng.choice([-1, 0, 1])
        contents = {
            "transactional_id": transactional_id,
            "acks": acks,
            "timeout": 30_000,
            "topic_data": [
                {
                    **named(topic),
                    "partition_data": [{"index": number, "records": bytes(data or b"")} for number, data in partitions],
                }
                for topic, partitions in topics
            ],
        }
        data = write_message(request_class(ApiKey.PRODUCE, version), contents)
        read = produce.read_produce(memoryview(b"head" + data), version, 4)
        assert read == produce.ProduceRequest(transactional_id, acks, 30_000, topics)
        for end in range(len(data)) if len(data) < 500 else ():
            with pytest.raises(InvalidRequestError):
                produce.read_produce(memoryview(data[:end]), version)


@given(st.integers(PRODUCE.served, PRODUCE.high), st.binary(max_size=100))
def test_any_bytes_are_a_produce_request_or_refused(version: int, data: bytes) -> None:
    case()
    try:
        produce.read_produce(memoryview(data), version)
    except InvalidRequestError:
        return


@pytest.mark.parametrize("version", range(PRODUCE.served, PRODUCE.high + 1))
def test_produce_responses(version: int) -> None:
    for seed in range(CASES):
        case()
        rng = random.Random(seed)
        topics = [
            produce.TopicAnswer(
                topic_of(version, produce.TOPIC_IDS, rng),
                [_some_answer(rng, version) for _ in range(rng.choice([0, 1, 130]))],
            )
            for _ in range(rng.randrange(3))
        ]
        endpoints = _some_endpoints(rng) if version >= produce.LEADERS else []
        data = produce.write_produce(version, topics, throttle_ms=7, endpoints=endpoints)
        contents = {
            **_endpoints_as_kio(endpoints),
            "throttle_time": 7,
            "responses": [
                {**named(topic), "partition_responses": [_as_kio(answer) for answer in answers]}
                for topic, answers in topics
            ],
        }
        assert data == write_message(response_class(ApiKey.PRODUCE, version), contents)


def _some_endpoints(rng: random.Random) -> list[NodeEndpoint]:
    """None, or so many that their size takes one byte or two."""
    rack = rng.choice([None, "west"])
    return [NodeEndpoint(node, "host.example", 9092, rack) for node in range(rng.choice([0, 1, 2, 12]))]


def _endpoints_as_kio(endpoints: list[NodeEndpoint]) -> dict[str, object]:
    return {"node_endpoints": [one._asdict() for one in endpoints]} if endpoints else {}


def _some_answer(rng: random.Random, version: int) -> produce.PartitionAnswer:
    return produce.PartitionAnswer(
        rng.randrange(100),
        rng.choice([0, 3, 87]),
        rng.randrange(-1, 2**62),
        rng.choice([-1, 1_790_000_000_000]),
        rng.randrange(-1, 2**62),
        [produce.RecordError(3, "no key"), produce.RecordError(4, None)] if rng.random() < 0.3 else (),
        rng.choice([None, "refused"]),
        (2, 9) if version >= produce.LEADERS and rng.random() < 0.3 else None,
    )


def _as_kio(answer: produce.PartitionAnswer) -> dict[str, object]:
    tags = {} if answer.leader is None else {"current_leader": dict(zip(_LEADER, answer.leader, strict=True))}
    errors = [{"batch_index": one.record, "batch_index_error_message": one.message} for one in answer.record_errors]
    return {
        **tags,
        "index": answer.partition,
        "error_code": answer.error,
        "base_offset": answer.base_offset,
        "log_append_time": answer.log_append_time,
        "log_start_offset": answer.log_start_offset,
        "record_errors": errors,
        "error_message": answer.error_message,
    }


@pytest.mark.parametrize("version", range(FETCH.low, FETCH.high + 1))
def test_fetch_responses(version: int) -> None:
    for seed in range(CASES):
        case()
        rng = random.Random(seed)
        topics = [
            fetch.FetchedTopic(
                topic_of(version, fetch.TOPIC_IDS, rng),
                [_some_fetched(rng, version) for _ in range(rng.choice([0, 1, 3, 130]))],
            )
            for _ in range(rng.randrange(3))
        ]
        endpoints = _some_endpoints(rng) if version >= fetch.ENDPOINTS else []
        parts, size = fetch.write_fetch(version, topics, error=0, session_id=5, throttle_ms=7, endpoints=endpoints)
        data = b"".join(part if isinstance(part, bytes) else _data(part) for part in parts)
        assert len(data) == size
        contents = {
            **_endpoints_as_kio(endpoints),
            "throttle_time": 7,
            "session_id": 5,
            "responses": [
                {**named(topic), "partitions": [_fetched_as_kio(one) for one in partitions]}
                for topic, partitions in topics
            ],
        }
        message = response_class(ApiKey.FETCH, version)
        assert data == write_message(message, contents)
        entity_reader(message)(data, 0)


def _data(part: object) -> bytes:
    assert isinstance(part, Bytes)
    return part.data


def _some_fetched(rng: random.Random, version: int) -> fetch.FetchedPartition:
    tagged = version >= fetch.FLEXIBLE and rng.random() < 0.3
    return fetch.FetchedPartition(
        rng.randrange(100),
        rng.choice([0, 1, 6]),
        rng.randrange(-1, 2**62),
        rng.randrange(-1, 2**62),
        rng.randrange(-1, 2**62),
        rng.choice([None, [], [(1, 2), (3, 4)]]),
        rng.choice([-1, 2]),
        rng.choice([None, Bytes(b""), Bytes(rng.randbytes(200))]),
        (3, 44) if tagged else None,
        (2, 9) if tagged and rng.random() < 0.5 else None,
    )


def _fetched_as_kio(one: fetch.FetchedPartition) -> dict[str, Any]:
    contents: dict[str, Any] = {
        "partition_index": one.partition,
        "error_code": one.error,
        "high_watermark": one.high_watermark,
        "last_stable_offset": one.last_stable_offset,
        "log_start_offset": one.log_start_offset,
        "aborted_transactions": None
        if one.aborted is None
        else [{"producer_id": producer, "first_offset": first} for producer, first in one.aborted],
        "preferred_read_replica": one.preferred_read_replica,
        "records": b"" if one.records is None else _data(one.records),
    }
    if one.diverging is not None:
        contents["diverging_epoch"] = {"epoch": one.diverging[0], "end_offset": one.diverging[1]}
    if one.leader is not None:
        contents["current_leader"] = {"leader_id": one.leader[0], "leader_epoch": one.leader[1]}
    return contents
