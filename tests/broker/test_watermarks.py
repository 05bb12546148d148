"""The contents of ``seglog.watermarks`` against the logs, and which readers trust the file of a dead broker."""

from __future__ import annotations

import logging
import random
from pathlib import Path
from types import MappingProxyType
from typing import Final

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import seglog
from seglog.broker.watermarks import Watermarks
from seglog.core.fs import OsFs
from seglog.core.ground import Ground
from seglog.core.types import TopicPartition
from seglog.records.record import NewRecord, encode_batch
from seglog.replication.replica import Replica
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.formats.watermarks import WATERMARKS, Watermark, decode_watermarks, read_watermarks
from seglog.testing import Broker
from tests.broker.broker_thread import RunningNode
from tests.cases import case
from tests.kit.manual_clock import ManualClock
from tests.kit.memory_fs import MemoryFs
from tests.lone import LoneTopics

NAMES: Final = st.sampled_from([*(f"topic-{number}" * 30 for number in range(4)), "t"])
"""A few of the long ones fill the file's first page."""
SMALL: Final = MappingProxyType({"segment.index.bytes": "1024"})


class Published(RuleBasedStateMachine):
    """Topics come, grow and go, and records come in: the file always says what the logs say."""

    def __init__(self) -> None:
        super().__init__()
        case()
        clock = ManualClock()
        self.fs = MemoryFs(clock=clock)
        self.directory = LogDir.open("/data", ground=Ground(fs=self.fs, clock=clock, rng=random.Random(1)))
        self.watermarks = Watermarks(self.fs, "/data")
        self.watermarks.open()
        self.topics = LoneTopics(self.directory, self.watermarks)
        self.gone: list[Replica] = []

    @rule(name=NAMES, partitions=st.integers(1, 4))
    def make(self, name: str, partitions: int) -> None:
        if name not in self.topics.by_name:
            self.directory.create_topic(name, partitions, SMALL)
            self.topics.refresh()

    @rule(name=NAMES, more=st.integers(1, 4))
    def grow(self, name: str, more: int) -> None:
        if topic := self.topics.by_name.get(name):
            self.directory.add_partitions(name, len(topic.partitions) + more)
            self.topics.refresh()

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        if topic := self.topics.by_name.get(name):
            self.gone += [partition for partition in topic.partitions if partition is not None]
            self.directory.delete_topic(name)
            self.topics.refresh()

    @rule(data=st.data(), producer=st.sampled_from([-1, 7]))
    def append(self, data: st.DataObject, producer: int) -> None:
        """Also what leaves a transaction open."""
        known = [partition for topic in self.topics for partition in topic.partitions if partition is not None]
        if known:
            partition = data.draw(st.sampled_from(known))
            open_now = partition.log.last_stable_offset < partition.log.log_end_offset
            if producer < 0 or open_now:
                partition.append(encode_batch([NewRecord(b"v")] * 3))
            else:
                partition.append(
                    encode_batch(
                        [NewRecord(b"v")], producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True
                    )
                )

    @precondition(lambda self: self.gone)
    @rule()
    def nobody_is_told_of_what_is_gone(self) -> None:
        for partition in self.gone:
            partition._show()

    @invariant()
    def is_what_the_logs_say(self) -> None:
        logs = {
            partition.topic_partition: Watermark(partition.log.high_watermark, partition.log.last_stable_offset)
            for topic in self.topics
            for partition in topic.partitions
            if partition is not None
        }
        assert decode_watermarks(self.fs.read(f"/data/{WATERMARKS}")) == logs

    def teardown(self) -> None:
        self.watermarks.close()
        assert not self.fs.exists(f"/data/{WATERMARKS}")
        self.directory.close()


TestPublished = Published.TestCase
TestPublished.settings = settings(max_examples=40, stateful_step_count=25)


def produce(running: RunningNode, topic: str, count: int) -> None:
    async def append() -> None:
        partition = running.node.topics.partition(topic, 0)
        assert partition is not None
        for _ in range(count):
            partition.append(encode_batch([NewRecord(b"v")]))

    running.on_loop(append)


def test_a_running_broker_is_read_and_a_stopped_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "log"
    (path / WATERMARKS).parent.mkdir()
    (path / WATERMARKS).write_bytes(b"of an earlier time")
    with RunningNode(path) as running:
        running.on_loop(lambda: running.node.changes.create("t", [(), ()], MappingProxyType({})))
        assert read_watermarks(OsFs(), str(path)) == {("t", 0): (0, 0), ("t", 1): (0, 0)}
        produce(running, "t", 5)
        assert (read_watermarks(OsFs(), str(path)) or {})[TopicPartition("t", 0)] == (5, 5)
        topic = running.node.topics.by_name["t"]
        running.on_loop(lambda: running.node.changes.delete(topic))
        assert read_watermarks(OsFs(), str(path)) == {}
    assert not (path / WATERMARKS).exists()
    with seglog.open(path):
        assert read_watermarks(OsFs(), str(path)) is None


def test_a_broker_that_was_killed_says_nothing_and_its_successor_all() -> None:
    with Broker({"t": 1}, process=True) as broker:
        path = broker.data_dir
        assert read_watermarks(OsFs(), path) == {("t", 0): (0, 0)}
        broker.kill()
        assert (Path(path) / WATERMARKS).exists()
        assert read_watermarks(OsFs(), path) is None
        with LogDir.open(path) as directory:  # whoever has the directory now: the file is not its own
            directory.log("t").append(encode_batch([NewRecord(b"v")]))
            assert read_watermarks(OsFs(), path) is None
        broker.start()
        assert read_watermarks(OsFs(), path) == {("t", 0): (1, 1)}


class FullDisk(OsFs):
    """No room for one file."""

    __slots__ = ()

    def rename(self, source: str, target: str) -> None:
        if target.endswith(WATERMARKS):
            raise OSError(28, "No space left on device", target)
        super().rename(source, target)


def test_without_room_for_it_a_broker_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fs = FullDisk()
    with LogDir.open(str(tmp_path), ground=Ground(fs=fs)) as directory, caplog.at_level(logging.WARNING):
        watermarks = Watermarks(fs, directory.path)
        watermarks.open()
        topics = LoneTopics(directory, watermarks)
        directory.create_topic("t", 1)
        topics.refresh()
        (partition,) = topics.by_name["t"].partitions
        assert partition is not None
        partition.append(encode_batch([NewRecord(b"v")]))
        assert read_watermarks(fs, directory.path) is None
        watermarks.remove(partition)
        watermarks.close()
    assert "seglog.watermarks cannot be written" in caplog.text
