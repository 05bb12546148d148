"""Fetch as a follower writes and reads it, against kio."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Final
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.core.errors import InvalidRequestError
from seglog.protocol import replica_fetch
from seglog.protocol.apis import ApiKey
from seglog.protocol.message_reader import Message
from seglog.protocol.message_writer import write_message
from seglog.protocol.messages import read_request
from seglog.protocol.replica_fetch import (
    VERSION,
    AnsweredPartition,
    RequestHead,
    WantedPartition,
    read_response,
    write_request,
)
from seglog.protocol.schema import response_class
from seglog.protocol.wire import uvarint
from tests.cases import case

CASES: Final = 200
INT32: Final = (-1, 0, 1, 2**31 - 1)
INT64: Final = (-1, 0, 1, 2**63 - 1)


def head_of(request: Message) -> RequestHead:
    return RequestHead(
        request.max_wait,
        request.min_bytes,
        request.max_bytes,
        request.session_id,
        request.session_epoch,
        request.replica_state.replica_id,
        request.replica_state.replica_epoch,
        request.isolation_level,
    )


def wanted_of(request: Message) -> list[tuple[bytes, list[WantedPartition]]]:
    """By topic id."""
    return [
        (
            topic.topic_id.bytes,
            [
                WantedPartition(
                    one.partition,
                    one.current_leader_epoch,
                    one.fetch_offset,
                    one.last_fetched_epoch,
                    one.log_start_offset,
                    one.partition_max_bytes,
                )
                for one in topic.partitions
            ],
        )
        for topic in request.topics
    ]


def test_requests() -> None:
    for seed in range(CASES):
        case()
        rng = random.Random(seed)
        head = RequestHead._make([*rng.choices(INT32, k=6), rng.choice(INT64), rng.choice((0, 1))])
        wanted = {
            rng.randbytes(16): [
                WantedPartition(
                    number,
                    rng.choice(INT32),
                    rng.choice(INT64),
                    rng.choice(INT32),
                    rng.choice(INT64),
                    rng.choice(INT32),
                )
                for number in range(rng.choice((0, 1, 3, 200)))
            ]
            for _ in range(rng.randrange(4))
        }
        forgotten = {rng.randbytes(16): [rng.choice(INT32) for _ in range(rng.choice((0, 1, 200)))]}
        data = write_request(head, wanted, forgotten)
        read = read_request(ApiKey.FETCH, VERSION, data)
        by_hand = replica_fetch.read_request(memoryview(b"head" + data), 4)
        if head.replica_id < 0:  # that is a consumer
            assert by_hand is None
        else:
            assert by_hand == replica_fetch.FollowerRequest(
                head,
                [(UUID(bytes=topic_id), one) for topic_id, partitions in wanted.items() for one in partitions],
                [(UUID(bytes=topic_id), number) for topic_id, numbers in forgotten.items() for number in numbers],
            )
        assert head_of(read) == head
        assert wanted_of(read) == list(wanted.items())
        assert {topic.topic_id.bytes: list(topic.partitions) for topic in read.forgotten_topics_data} == forgotten


def test_a_request_that_is_not_quite_one_is_left_to_others() -> None:
    rng = random.Random(1)
    head = RequestHead(500, 1, 1 << 20, 5, 3, 2, 9)
    wanted = {rng.randbytes(16): [WantedPartition(number, 1, 2, 1, 0, 100) for number in range(3)]}
    data = write_request(head, wanted, {})
    assert replica_fetch.read_request(memoryview(data), 0) is not None
    for end in range(len(data)):
        case()
        assert replica_fetch.read_request(memoryview(data[:end]), 0) is None
    for _ in range(CASES):
        case()
        at, length = rng.randrange(24, len(data)), rng.randrange(3)
        replica_fetch.read_request(memoryview(data[:at] + rng.randbytes(length) + data[at:]), 0)
    assert replica_fetch.read_request(memoryview(data + b"\0"), 0) is None


def random_answer(rng: random.Random) -> dict[str, Any]:
    return {
        "throttle_time": rng.choice((0, 5)),
        "error_code": rng.choice((0, 70)),
        "session_id": rng.choice(INT32),
        "responses": [
            {
                "topic_id": UUID(int=rng.getrandbits(127) + 1),
                "partitions": [
                    {
                        "partition_index": number,
                        "error_code": rng.choice((0, 1, 74, -1)),
                        "high_watermark": rng.choice(INT64),
                        "last_stable_offset": rng.choice(INT64),
                        "log_start_offset": rng.choice(INT64),
                        "aborted_transactions": rng.choice(
                            (None, [], [{"producer_id": 1, "first_offset": 2}] * rng.randrange(300))
                        ),
                        "preferred_read_replica": rng.choice(INT32),
                        "records": rng.choice((None, b"", rng.randbytes(rng.choice((1, 126, 127, 20_000))))),
                    }
                    | rng.choice(({}, {"diverging_epoch": {"epoch": 3, "end_offset": 2**40}}))
                    | rng.choice(({}, {"current_leader": {"leader_id": 4, "leader_epoch": 9}}))
                    | rng.choice(({}, {"snapshot_id": {"end_offset": 7, "epoch": 1}}))
                    for number in range(rng.choice((0, 1, 3)))
                ],
            }
            for _ in range(rng.choice((0, 1, 2)))
        ],
        "node_endpoints": rng.choice(((), [{"node_id": 1, "host": "a", "port": 9, "rack": None}])),
    }


def expected(answer: dict[str, Any]) -> Iterator[AnsweredPartition]:
    for topic in answer["responses"]:
        for one in topic["partitions"]:
            diverging = one.get("diverging_epoch")
            yield AnsweredPartition(
                topic["topic_id"].bytes,
                one["partition_index"],
                one["error_code"],
                one["high_watermark"],
                one["log_start_offset"],
                (diverging["epoch"], diverging["end_offset"]) if diverging else None,
                memoryview(one["records"] or b""),
            )


def test_responses() -> None:
    for seed in range(CASES):
        case()
        answer = random_answer(random.Random(seed))
        data = write_message(response_class(ApiKey.FETCH, VERSION), answer)
        read = read_response(memoryview(data))
        assert (read.error, read.session_id) == (answer["error_code"], answer["session_id"])
        assert read.partitions == list(expected(answer))
        assert all(one.records.obj is data for one in read.partitions if one.records)  # where they were received
        if len(data) < 2_000:
            for end in range(len(data)):
                with pytest.raises(InvalidRequestError):
                    read_response(memoryview(data)[:end])
            with pytest.raises(InvalidRequestError, match="after the end"):
                read_response(memoryview(data + b"\0"))


@given(st.integers(0, CASES), st.data())
def test_damaged_responses(seed: int, data: st.DataObject) -> None:
    """They can be read, or not; nothing else happens, and no more is made of them than they are."""
    case()
    whole = bytearray(write_message(response_class(ApiKey.FETCH, VERSION), random_answer(random.Random(seed))))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.sampled_from((0, 1, 127, 128, 255)))
    try:
        read = read_response(memoryview(whole))
    except InvalidRequestError:
        return
    assert sum(len(one.records) for one in read.partitions) <= len(whole)


def test_arrays_of_millions() -> None:
    head = bytes(10)
    many = uvarint(2**31)
    for body in (head + many, head + b"\2" + bytes(16) + many, head + b"\2" + bytes(16) + b"\2" + bytes(30) + many):
        with pytest.raises(InvalidRequestError, match="array of 2147483647"):
            read_response(memoryview(body + bytes(16)))
