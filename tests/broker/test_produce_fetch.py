"""Produce and Fetch without sockets: requests as kio writes them, answers as kio reads them, the log in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Iterator, Mapping
from typing import Any, Final

import pytest
from kio.serial import entity_reader

from seglog.broker.fetch.fetch import Fetch
from seglog.broker.fetch.fetch_sessions import FetchSessionCache
from seglog.broker.offload import Offload
from seglog.broker.produce.produce import Produce
from seglog.broker.requests import RequestContext
from seglog.core.errors import InvalidRequestError
from seglog.core.ground import THREADS, Ground
from seglog.protocol.apis import APIS, ApiKey
from seglog.protocol.fetch import FetchAnswer
from seglog.protocol.message_writer import write_message
from seglog.protocol.schema import request_class, response_class
from seglog.records.batch import entries
from seglog.records.record import NewRecord, encode_batch, end_txn_marker
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.log.admit import Origin
from tests.kit.manual_clock import ManualClock
from tests.kit.memory_fs import MemoryFs
from tests.lone import LoneTopics
from tests.storage.legacy_sets import encode_set

NOW: Final = 1_790_000_000_000
PRODUCE = range(APIS[ApiKey.PRODUCE].served, APIS[ApiKey.PRODUCE].high + 1)
FETCH = range(APIS[ApiKey.FETCH].low, APIS[ApiKey.FETCH].high + 1)


class Broker:
    """The handlers of Produce and Fetch. Topic ``t`` has two partitions, and ``c`` is compacted."""

    def __init__(self, directory: LogDir) -> None:
        self.topics = LoneTopics(directory)
        self.now = 0.0
        self.sessions = FetchSessionCache(2, now=lambda: self.now, rng=random.Random(1))
        self._produce = Produce(self.topics)
        self._fetch = Fetch(self.topics, self.sessions, Offload(THREADS), max_bytes=1 << 20)

    def named(self, topic: str, *, by_id: bool) -> dict[str, object]:
        return {"topic_id": self.topics.by_name[topic].topic_id} if by_id else {"name": topic, "topic": topic}

    def produce(
        self,
        data: bytes,
        *,
        topic: str = "t",
        partition: int = 0,
        version: int = 9,
        client_id: str = "",
        **fields: object,
    ) -> Any:
        partitions = [{"index": partition, "records": data}]
        contents = {
            "acks": 1,
            "timeout": 1000,
            "topic_data": [{**self.named(topic, by_id=version >= 13), "partition_data": partitions}],
            **fields,
        }
        body = write_message(request_class(ApiKey.PRODUCE, version), contents)
        answer = self._produce(memoryview(body), 0, context(ApiKey.PRODUCE, version, client_id))
        if answer is None:
            return None
        assert isinstance(answer, bytes)
        entity, size = entity_reader(response_class(ApiKey.PRODUCE, version))(answer, 0)
        assert size == len(answer)
        return entity.responses[0].partition_responses[0]

    def start_fetch(
        self, wanted: Mapping[int, int] | None = None, *, version: int = 12, topic: str = "t", **fields: Any
    ) -> FetchAnswer | Awaitable[FetchAnswer]:
        each = {"partition_max_bytes": 1 << 20, **fields.pop("each", {})}
        partitions = [
            {"partition": number, "fetch_offset": offset, **each} for number, offset in (wanted or {}).items()
        ]
        topics = [{**self.named(topic, by_id=version >= 13), "partitions": partitions}] if partitions else []
        contents = {
            "max_wait": 0,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "session_epoch": -1,
            "topics": topics,
            **fields,
        }
        body = write_message(request_class(ApiKey.FETCH, version), contents)
        return self._fetch(memoryview(body), 0, context(ApiKey.FETCH, version))

    def fetch(self, wanted: Mapping[int, int] | None = None, *, version: int = 12, **fields: Any) -> Any:
        answer = self.start_fetch(wanted, version=version, **fields)
        assert isinstance(answer, FetchAnswer)
        return read(answer, version)


def context(key: int, version: int, client_id: str = "") -> RequestContext:
    return RequestContext(key, version, client_id, "127.0.0.1", "PLAINTEXT")


def read(answer: FetchAnswer, version: int) -> Any:
    data = b"".join(part if isinstance(part, bytes) else part.read_part(0, part.size) for part in answer.parts)
    assert len(data) == answer.size
    entity, size = entity_reader(response_class(ApiKey.FETCH, version))(data, 0)
    assert size == len(data)
    return entity


def partitions_of(response: Any) -> dict[int, Any]:
    return {one.partition_index: one for topic in response.responses for one in topic.partitions}


def offsets(records: bytes) -> list[int]:
    return [entry.offset for entry in entries(records)]


@pytest.fixture
def directory() -> Iterator[LogDir]:
    clock = ManualClock(NOW)
    with LogDir.open("/data", ground=Ground(fs=MemoryFs(clock=clock), clock=clock, rng=random.Random(1))) as opened:
        opened.create_topic("t", 2)
        opened.create_topic("c", 1, {"cleanup.policy": "compact"})
        opened.create_topic("__consumer_offsets", 1)
        yield opened


@pytest.fixture
def broker(directory: LogDir) -> Broker:
    return Broker(directory)


def batch(*values: bytes, **fields: Any) -> bytes:
    return bytes(encode_batch([NewRecord(value, timestamp=NOW) for value in values], **fields))


# Produce


@pytest.mark.parametrize("version", PRODUCE)
def test_records_get_their_offsets(broker: Broker, version: int) -> None:
    first = broker.produce(batch(b"a", b"b"), version=version)
    second = broker.produce(batch(b"c"), version=version)
    assert (first.error_code, first.base_offset, second.base_offset) == (0, 0, 2)
    log = broker.topics.by_name["t"].partitions[0]
    assert log is not None
    assert [record.value for record in log.log.read(0).records()] == [b"a", b"b", b"c"]


REFUSED: Final[Mapping[str, tuple[Mapping[str, Any], int]]] = {
    "an unknown partition": ({"partition": 7}, 3),
    "acks of two": ({"acks": 2}, 21),
    "a transaction without a transactional id": (
        {
            "data": batch(b"a", producer_id=5, producer_epoch=0, base_sequence=0, transactional=True),
        },
        53,
    ),
    "an old message": ({"data": encode_set([NewRecord(b"a")], offset=0, magic=1)}, 87),
    "no batch": ({"data": bytes(100)}, 2),
    "no records": ({"data": b""}, 87),
    "a broken batch": ({"data": batch(b"a")[:-1] + b"?"}, 2),
    "two batches": ({"data": batch(b"a") + batch(b"b")}, 87),
    "a compacted topic without keys": ({"topic": "c"}, 87),
    "an internal topic": ({"topic": "__consumer_offsets"}, 17),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_batches_get_their_specific_errors(broker: Broker, name: str) -> None:
    fields, code = REFUSED[name]
    answer = broker.produce(**{"data": batch(b"a"), **fields})
    assert (answer.error_code, answer.base_offset) == (code, -1)
    assert broker.produce(batch(b"fine")).base_offset == 0


def test_a_duplicate_is_answered_with_its_offset_and_a_gap_is_refused(broker: Broker) -> None:
    first = batch(b"a", b"b", producer_id=5, producer_epoch=0, base_sequence=0)
    assert broker.produce(first).base_offset == 0
    assert broker.produce(batch(b"x")).base_offset == 2
    again = broker.produce(first)
    assert (again.error_code, again.base_offset) == (0, 0)
    gap = broker.produce(batch(b"c", producer_id=5, producer_epoch=0, base_sequence=3))
    assert gap.error_code == 45
    fenced = broker.produce(batch(b"c", producer_id=5, producer_epoch=-1 + 1, base_sequence=2))
    assert fenced.base_offset == 3
    assert broker.produce(batch(b"c", producer_id=5, producer_epoch=1, base_sequence=0)).base_offset == 4
    assert broker.produce(batch(b"c", producer_id=5, producer_epoch=0, base_sequence=4)).error_code == 47


def test_without_acks_nothing_is_answered_and_an_error_ends_the_connection(broker: Broker) -> None:
    assert broker.produce(batch(b"a"), acks=0) is None
    assert broker.produce(batch(b"b")).base_offset == 1
    with pytest.raises(InvalidRequestError):
        broker.produce(batch(b"a"), acks=0, partition=9)


# Fetch


@pytest.mark.parametrize("version", FETCH)
def test_produced_batches_can_be_fetched(broker: Broker, version: int) -> None:
    broker.produce(batch(b"a", b"b"))
    broker.produce(batch(b"c"))
    answer = partitions_of(broker.fetch({0: 0, 1: 0}, version=version))
    assert offsets(answer[0].records) == [0, 2]
    assert (answer[0].high_watermark, answer[0].last_stable_offset, answer[1].high_watermark) == (3, 3, 0)
    assert not answer[1].records
    middle = partitions_of(broker.fetch({0: 1}, version=version))[0]
    assert offsets(middle.records) == [0, 2]  # the batch that holds it


def test_limits_of_bytes(broker: Broker) -> None:
    sizes = [len(batch(bytes(1000))) for _ in range(3)]
    for partition in (0, 1):
        for _ in sizes:
            broker.produce(batch(bytes(1000)), partition=partition)
    two = broker.fetch({0: 0}, each={"partition_max_bytes": 2 * sizes[0] + 10})
    assert offsets(partitions_of(two)[0].records) == [0, 1]
    small = partitions_of(broker.fetch({0: 0, 1: 0}, max_bytes=10))
    assert offsets(small[0].records) == [0]  # the first batch always comes whole
    assert not small[1].records
    both = partitions_of(broker.fetch({0: 0, 1: 0}, max_bytes=4 * sizes[0]))
    assert [len(both[0].records), len(both[1].records)] == [3 * sizes[0], sizes[0]]


def test_errors_of_partitions(broker: Broker) -> None:
    broker.produce(batch(b"a"))
    answer = partitions_of(broker.fetch({0: 2, 1: 0, 5: 0}))
    assert [answer[number].error_code for number in (0, 1, 5)] == [1, 0, 3]
    leader = broker.topics.by_name["t"].partitions[0]
    assert leader is not None
    for epoch, code in ((leader.leader_epoch, 0), (leader.leader_epoch + 1, 75), (-1, 0)):
        found = partitions_of(broker.fetch({0: 0}, each={"current_leader_epoch": epoch}))[0]
        assert found.error_code == code
    leader.leader_epoch += 1
    old = partitions_of(broker.fetch({0: 0}, each={"current_leader_epoch": leader.leader_epoch - 1}))[0]
    assert old.error_code == 74


def test_read_committed_ends_at_the_last_stable_offset_and_lists_what_was_aborted(broker: Broker) -> None:
    partition = broker.topics.by_name["t"].partitions[0]
    assert partition is not None
    producer = {"producer_id": 5, "producer_epoch": 0, "transactional": True}
    partition.append(batch(b"a", base_sequence=0, **producer), Origin.COORDINATOR)
    open_ = partitions_of(broker.fetch({0: 0}, isolation_level=1))[0]
    assert (open_.last_stable_offset, open_.high_watermark, open_.records or b"") == (0, 1, b"")
    assert offsets(partitions_of(broker.fetch({0: 0}))[0].records) == [0]
    marker = end_txn_marker(commit=False, coordinator_epoch=0, producer_id=5, producer_epoch=0, timestamp=NOW)
    partition.append(bytes(marker), Origin.COORDINATOR)
    ended = partitions_of(broker.fetch({0: 0}, isolation_level=1))[0]
    assert offsets(ended.records) == [0, 1]
    assert [(txn.producer_id, txn.first_offset) for txn in ended.aborted_transactions] == [(5, 0)]
    assert partitions_of(broker.fetch({0: 0}))[0].aborted_transactions is None


def test_a_fetch_waits_for_enough_bytes_and_no_longer_than_it_says(broker: Broker) -> None:
    async def run() -> None:
        size = len(batch(b"a"))
        waiting = broker.start_fetch({0: 0, 1: 0}, max_wait=60_000, min_bytes=2 * size)
        assert isinstance(waiting, Awaitable)
        task = asyncio.ensure_future(waiting)
        await asyncio.sleep(0)
        broker.produce(batch(b"a"))
        await asyncio.sleep(0)
        assert not task.done()
        broker.produce(batch(b"b"), partition=1)
        answer = partitions_of(read(await task, 12))
        assert [offsets(answer[number].records) for number in (0, 1)] == [[0], [0]]
        assert all(not one.waiters for one in broker.topics.by_name["t"].partitions if one is not None)
        in_vain = broker.start_fetch({1: 1}, max_wait=5)
        assert isinstance(in_vain, Awaitable)
        late = partitions_of(read(await in_vain, 12))
        assert (late[1].error_code, late[1].high_watermark, late[1].records or b"") == (0, 1, b"")

    asyncio.run(run())


def test_an_error_is_not_waited_for(broker: Broker) -> None:
    assert partitions_of(broker.fetch({0: 5}, max_wait=60_000))[0].error_code == 1


# Sessions


def test_a_session_is_asked_for_news_only(broker: Broker) -> None:
    broker.produce(batch(b"a"))
    first = broker.fetch({0: 0, 1: 0}, session_epoch=0)
    assert first.session_id > 0
    assert set(partitions_of(first)) == {0, 1}
    nothing = broker.fetch({0: 1}, session_id=first.session_id, session_epoch=1)
    assert partitions_of(nothing) == {}
    broker.produce(batch(b"b"), partition=1)
    news = broker.fetch(session_id=first.session_id, session_epoch=2)
    assert offsets(partitions_of(news)[1].records) == [0]
    assert set(partitions_of(news)) == {1}
    forgotten = [{"topic": "t", "partitions": [1]}]
    without = broker.fetch(session_id=first.session_id, session_epoch=3, forgotten_topics_data=forgotten)
    assert partitions_of(without) == {}
    broker.produce(batch(b"c"))
    assert set(partitions_of(broker.fetch(session_id=first.session_id, session_epoch=4))) == {0}


def test_a_partition_that_was_served_waits_for_the_others(broker: Broker) -> None:
    for partition in (0, 1):
        for _ in range(2):
            broker.produce(batch(bytes(500)), partition=partition)
    first = broker.fetch({0: 0, 1: 0}, session_epoch=0, max_bytes=1)
    assert [number for number, one in partitions_of(first).items() if one.records] == [0]
    # A turn is counted from the first request on that only says what changed.
    for epoch, served in ((1, 0), (2, 1)):
        found = broker.fetch({0: 0}, session_id=first.session_id, session_epoch=epoch, max_bytes=1)
        assert [number for number, one in partitions_of(found).items() if one.records] == [served]


def test_sessions_that_are_not_there(broker: Broker) -> None:
    opened = broker.fetch({0: 0}, session_epoch=0)
    assert broker.fetch(session_id=opened.session_id, session_epoch=5).error_code == 71
    assert broker.fetch(session_id=opened.session_id + 1, session_epoch=1).error_code == 70
    closed = broker.fetch({0: 0}, session_id=opened.session_id, session_epoch=-1)
    assert (closed.error_code, closed.session_id) == (0, 0)
    assert broker.fetch(session_id=opened.session_id, session_epoch=1).error_code == 70


def test_full_session_cache_evicts_an_idle_session(broker: Broker) -> None:
    first, second, third = [broker.fetch({0: 0}, session_epoch=0).session_id for _ in range(3)]
    assert [bool(session) for session in (first, second, third)] == [True, True, False]
    broker.now = 100
    broker.fetch(session_id=second, session_epoch=1)
    broker.now = 121
    assert broker.fetch({0: 0}, session_epoch=0).session_id > 0
    assert broker.fetch(session_id=first, session_epoch=1).error_code == 70
    assert broker.fetch(session_id=second, session_epoch=2).error_code == 0
