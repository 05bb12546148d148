"""Requests that take long: other clients of the broker are answered meanwhile.

What counts is how many items one step of the loop handles, not seconds: the machine may have much else to do. The
longest step is measured too, and printed.
"""

from __future__ import annotations

import asyncio
import gc
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from seglog.broker import offload
from seglog.broker.apis import metadata
from seglog.broker.fetch import fetch
from seglog.protocol.apis import APIS, ApiKey
from seglog.protocol.message_reader import Message
from seglog.protocol.message_writer import write_message
from seglog.protocol.schema import request_class
from seglog.records.compression import Codec
from seglog.records.record import NewRecord, encode_batch
from seglog.storage.log import segment
from tests.broker.broker_thread import RunningNode, Wire

NAMES = 20_000
PARTITIONS = 12_000
COUNTS = {"many": 300, "one": 1}


class Pulse:
    """Turns of a loop, as one that wants to have a turn all the time sees them."""

    def __init__(self, broker: RunningNode) -> None:
        self._broker = broker
        self._is_over = False
        self.turns = 0
        self.longest = 0.0

    async def _beat(self) -> None:
        before = time.perf_counter()
        while not self._is_over:
            await asyncio.sleep(0)
            now = time.perf_counter()
            self.longest = max(self.longest, now - before)
            before = now
            self.turns += 1

    @contextmanager
    def beating(self) -> Iterator[None]:
        thread = threading.Thread(target=lambda: self._broker.on_loop(self._beat))
        thread.start()
        try:
            yield
        finally:
            self._is_over = True
            thread.join()


def ask_beside(broker: RunningNode, key: ApiKey, version: int, **contents: object) -> tuple[Message, int]:
    """The answer, and how many turns of the loop another task had meanwhile. The request is made before, and the answer
    read after that."""
    body = write_message(request_class(key, version), contents)
    head = struct.pack(">hhih", key, version, 1, -1) + (b"\0" if version >= APIS[key].flexible else b"")
    with Wire(broker.bootstrap) as wire:
        pulse = Pulse(broker)
        with pulse.beating():
            before = pulse.turns
            wire.send_raw(head + body)
            wire.wait()
            turns = pulse.turns - before
        print(f"{key.name}: {turns} turns of the loop, the longest {pulse.longest * 1000:.1f} ms")
        return wire.answer(key, version), turns


def test_a_metadata_request_of_many_names_leaves_turns_to_others(broker: RunningNode) -> None:
    names = [{"name": f"no-{number}"} for number in range(NAMES)]
    topics = [*names, names[0]]
    answer, turns = ask_beside(broker, ApiKey.METADATA, 9, topics=topics, allow_auto_topic_creation=True)
    assert [topic.name for topic in answer.topics] == [one["name"] for one in names]
    assert [topic.error_code for topic in answer.topics[100:]] == [3] * (NAMES - 100)  # the first hundred are created
    assert turns > NAMES // offload.SLICE


@pytest.mark.parametrize("asked", [None, [{"name": "many"}, {"name": "no"}, {"name": "many"}, {"name": "one"}]])
def test_metadata_of_many_partitions_leave_turns_to_others(
    broker: RunningNode, monkeypatch: pytest.MonkeyPatch, asked: list[dict[str, str]] | None
) -> None:
    """20,000 partitions held up all other clients for a tenth of a second."""
    with Wire(broker.bootstrap) as wire:
        made = [{"name": name, "num_partitions": count, "replication_factor": 1} for name, count in COUNTS.items()]
        wire.ask(ApiKey.CREATE_TOPICS, topics=made, timeout=30_000)
        at_once = wire.ask(ApiKey.METADATA, 12, topics=asked, allow_auto_topic_creation=False)
    monkeypatch.setattr(metadata, "SLICE", 20)
    answer, turns = ask_beside(broker, ApiKey.METADATA, 12, topics=asked, allow_auto_topic_creation=False)
    assert answer == at_once
    assert COUNTS.items() <= {topic.name: len(topic.partitions) for topic in answer.topics}.items()
    assert turns > sum(COUNTS.values()) // 20


def test_a_fetch_of_many_partitions_leaves_turns_to_others(broker: RunningNode, topic_name: str) -> None:
    with Wire(broker.bootstrap) as wire:
        wire.create_topic(topic_name)
        records = bytes(encode_batch([NewRecord(b"value", None, 1)]))
        data = [{"name": topic_name, "partition_data": [{"index": 0, "records": records}]}]
        wire.ask(ApiKey.PRODUCE, 9, acks=1, timeout=30_000, topic_data=data)
    wanted = [{"partition": number, "fetch_offset": 0, "partition_max_bytes": 1000} for number in range(PARTITIONS)]
    topics = [{"topic": topic_name, "partitions": wanted}]
    answer, turns = ask_beside(
        broker, ApiKey.FETCH, 11, max_wait=0, min_bytes=1, max_bytes=1 << 20, session_epoch=-1, topics=topics
    )
    (topic,) = answer.responses
    assert [one.partition_index for one in topic.partitions] == list(range(PARTITIONS))
    assert [topic.partitions[0].error_code, topic.partitions[1].error_code] == [0, 3]
    assert topic.partitions[0].records[61:] == records[61:]
    assert turns > 3 * PARTITIONS // offload.SLICE  # each partition is handled in two slices; the rest is in the thread


def test_a_fetch_of_many_partitions_waits_for_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 8
    for module in (offload, fetch):
        monkeypatch.setattr(module, "SLICE", 3)
    with RunningNode(tmp_path) as broker, Wire(broker.bootstrap) as wire:
        wire.create_topic("t", count)
        wanted = [{"partition": number, "fetch_offset": 0, "partition_max_bytes": 1000} for number in range(count)]
        topics = [{"topic": "t", "partitions": wanted}]
        wire.send(ApiKey.FETCH, 11, max_wait=60_000, min_bytes=1, max_bytes=1 << 20, session_epoch=-1, topics=topics)
        with Wire(broker.bootstrap) as other:
            records = bytes(encode_batch([NewRecord(b"value", None, 1)]))
            data = [{"name": "t", "partition_data": [{"index": count - 1, "records": records}]}]
            other.ask(ApiKey.PRODUCE, 9, acks=1, timeout=30_000, topic_data=data)
        (topic,) = wire.answer(ApiKey.FETCH, 11).responses
        assert [one.partition_index for one in topic.partitions if one.records] == [count - 1]
        standing = broker.node.topics.by_name["t"]
        assert not any(partition.waiters for partition in standing.partitions if partition is not None)


@pytest.mark.parametrize("is_too_large", [True, False])
def test_a_time_is_looked_for_in_a_batch_that_claims_much(
    broker: RunningNode, topic_name: str, monkeypatch: pytest.MonkeyPatch, is_too_large: bool
) -> None:
    """In the thread, and in no more memory than `LOOKUP_LIMIT`; beyond it the batch's first offset is the answer."""
    monkeypatch.setattr(segment, "LOOKUP_LIMIT", (1 << 20) if is_too_large else (1 << 30))
    with Wire(broker.bootstrap) as wire:
        wire.create_topic(topic_name)
        times = [NewRecord(bytes(4 << 20), None, 1000 + number) for number in range(8)]
        for _ in range(2):
            records = bytes(encode_batch(times, codec=Codec.ZSTD))
            assert len(records) < 16 << 10
            data = [{"name": topic_name, "partition_data": [{"index": 0, "records": records}]}]
            wire.ask(ApiKey.PRODUCE, 9, acks=1, timeout=30_000, topic_data=data)
    wanted = {"partition_index": 0, "timestamp": 1005, "current_leader_epoch": -1}
    topics = [{"name": topic_name, "partitions": [wanted]}]
    answer, turns = ask_beside(broker, ApiKey.LIST_OFFSETS, 5, replica_id=-1, topics=topics)
    (one,) = answer.topics[0].partitions
    assert (one.error_code, one.offset) == (0, 0 if is_too_large else 5)
    if not is_too_large:
        assert turns > 3


def test_offsets_of_partitions_that_are_named_twice_are_refused_also_among_many(
    broker: RunningNode, topic_name: str
) -> None:
    with Wire(broker.bootstrap) as wire:
        wire.create_topic(topic_name)
        numbers = [0, *range(1, 2 * offload.SLICE), 0]
        wanted = [{"partition_index": number, "timestamp": -1, "current_leader_epoch": -1} for number in numbers]
        topics = [{"name": topic_name, "partitions": wanted}]
        answer = wire.ask(ApiKey.LIST_OFFSETS, 5, replica_id=-1, topics=topics)
        codes = {one.partition_index: one.error_code for one in answer.topics[0].partitions}
        assert codes == dict.fromkeys(range(2 * offload.SLICE), 3) | {0: 42}


class Counted(Message):
    """A message that counts those that are gone."""

    gone = 0

    def __del__(self) -> None:
        Counted.gone += 1


def test_messages_are_freed_one_by_one() -> None:
    Counted.gone = 0
    names = ["a", "b"]
    topics = [Counted(names=names, partitions=tuple(Counted(number=number) for number in range(3))) for _ in "ab"]
    request = Counted(topics=topics)
    answer = {"results": [{"one": Counted()}, {"one": Counted()}], "empty": (), "throttle": 0}
    garbage = [request, answer]
    del request, answer, topics
    offload.drop(garbage)
    assert not garbage
    assert Counted.gone == 11
    assert names == ["a", "b"]


def test_objects_of_a_large_request_are_old_when_collections_resume() -> None:
    """A collection of young objects would pass over all of them, in the event loop."""
    with offload.no_collections:
        made = [[number] for number in range(20_000)]
    old = set(map(id, gc.get_objects(generation=2)))
    assert gc.isenabled()
    assert all(id(one) in old for one in made)


def test_a_process_with_frozen_objects_counts_them_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The count passes over all of them, and each request of a follower with many partitions is a large one."""
    counted = []
    real = gc.get_freeze_count

    def count() -> int:
        counted.append(real())
        return counted[-1]

    monkeypatch.setattr(offload, "_frozen", threading.Event())
    monkeypatch.setattr(gc, "get_freeze_count", count)
    gc.freeze()
    try:
        for _ in range(5):
            with offload.no_collections:
                assert not gc.isenabled()
            assert gc.isenabled()
        assert real(), "nothing thaws"
    finally:
        gc.unfreeze()
    assert len(counted) == 1
