"""A broker that starts with a copy of a log directory, and never touches the original."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

import seglog
from seglog.core.errors import LogDirInUseError
from seglog.testing import Broker, BrokerError
from seglog.testing.directory_copy import copy_directory

_OLD_MS = 1_500_000_000_000
_LARGE = 350_000


def contents(directory: Path) -> dict[str, tuple[int, int, bytes]]:
    """Inode, modification time and bytes of all files but the lock."""
    return {
        str(path.relative_to(directory)): (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def make(directory: Path) -> None:
    """Three sealed segments and an active one, closed cleanly."""
    with seglog.open(directory) as opened:
        opened.create_topic("t", partitions=1, config={"segment.bytes": "1048576"})
        for number in range(4):
            record = seglog.NewRecord(b"%d" % number * _LARGE, timestamp=_OLD_MS)
            for _ in range(3):
                opened.log("t", 0).append_records([record])


def values(broker: Broker) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "-", "enable.partition.eof": True})
    consumer.assign([TopicPartition("t", 0, 0)])
    found: list[bytes | None] = []
    while (message := consumer.consume(1, 30)[0]).error() is None:
        found.append(message.value())
    consumer.close()
    return found


def test_a_broker_starts_with_a_copy_and_leaves_the_original(tmp_path: Path) -> None:
    original = tmp_path / "original"
    make(original)
    before = contents(original)
    with Broker(copy_of=original) as broker:
        assert values(broker) == [b"%d" % number * _LARGE for number in range(4) for _ in range(3)]
        copied = contents(Path(broker.data_dir))
        assert {inode for inode, _, _ in copied.values()} & {inode for inode, _, _ in before.values()} == set()
        segments = {name for name in before if name.endswith(".log")}
        assert len(segments) >= 4
        assert {name: copied[name][2] for name in segments} == {name: before[name][2] for name in segments}
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce("t", b"new")
        assert producer.flush(30) == 0
        broker.restart()
        assert values(broker)[-1] == b"new"
        path = broker.data_dir
        broker.reset()
    assert not os.path.exists(path)
    assert contents(original) == before


def test_the_copy_keeps_times_and_needs_no_reflink(tmp_path: Path) -> None:
    make(tmp_path / "original")
    os.utime(tmp_path / "original" / "t-0" / "partition.metadata", (1_000_000, 1_000_000))
    (tmp_path / "copy").mkdir()
    copy_directory(str(tmp_path / "original"), str(tmp_path / "copy"))
    assert (tmp_path / "copy" / "t-0" / "partition.metadata").stat().st_mtime == 1_000_000
    for path in (tmp_path / "copy").rglob("*"):
        assert not path.is_symlink()
        assert path.is_dir() or path.stat().st_nlink == 1


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "original")
    with (
        seglog.open(tmp_path / "original"),
        pytest.raises(LogDirInUseError, match="stop it"),
        Broker(copy_of=tmp_path / "original"),
    ):
        pass
    with pytest.raises(BrokerError, match="`data_dir` or `copy_of`"):
        Broker(data_dir=tmp_path, copy_of=tmp_path)
    with pytest.raises(FileNotFoundError), Broker(copy_of=tmp_path / "none"):
        pass
