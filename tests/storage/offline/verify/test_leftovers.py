"""Verification of what is being written, what is left over, and what is none of Kafka's."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from seglog.core.errors import InvalidLogDirError
from seglog.core.fs import FileStat, OsFs
from seglog.records.record import NewRecord, encode_batch
from seglog.storage.formats.paths import CLEAN_SHUTDOWN, RECOVERY_POINTS, list_partitions
from seglog.storage.offline.findings import Severity
from seglog.storage.offline.verify import verify
from seglog.storage.offline.verify.directory_state import OFFSET_FILES
from tests.cases import case
from tests.storage.offline.verify.verified import (
    KINDS,
    LOG,
    bytes_of,
    look,
    make_dir,
    open_dir,
)

# What is being written, and what is left over


def test_an_open_log_may_have_a_torn_tail(logs: Path) -> None:
    directory = open_dir(logs)
    directory.create_topic("t")
    log = directory.log("t")
    log.append(encode_batch([NewRecord(b"x" * 2000)] * 10))
    log.append(encode_batch([NewRecord(b"y" * 100)]))
    copy = logs.parent / "crashed"
    shutil.copytree(logs, copy)
    directory.close()
    assert look(copy).findings == []
    path = copy / "t-0" / LOG
    whole = path.read_bytes()
    for left in (1, 20, 61, 150):
        path.write_bytes(whole[:-left])
        verified = look(copy)
        assert not verified.is_damaged
        assert [finding.severity for finding in verified.findings] == [Severity.NOTE]
        assert verified.findings[0].reason.startswith("torn tail: ")
    path.write_bytes(whole + bytes(4096))
    assert [finding.reason for finding in look(copy).findings] == [
        "torn tail: zeros instead of a batch; no batch follows"
    ]


class InUse(OsFs):
    """During verification a broker replaces a checkpoint by a rename, and creates a log's indexes."""

    def stat(self, path: str) -> FileStat:
        if path.endswith("-checkpoint.tmp"):
            Path(path).rename(path.removesuffix(".tmp"))
        return super().stat(path)

    def read(self, path: str) -> bytes:
        try:
            return super().read(path)
        finally:
            if path.endswith("index"):
                Path(path).touch()


def test_what_goes_and_what_comes_while_a_directory_is_looked_at(logs: Path) -> None:
    directory = open_dir(logs)
    directory.create_topic("t", 2)
    directory.log("t").append(encode_batch([NewRecord(b"x")]))
    directory.close()
    (logs / CLEAN_SHUTDOWN).unlink()
    for name in ("*.index", "*.timeindex"):
        for path in (logs / "t-0").glob(name):
            path.unlink()
    for name in OFFSET_FILES:
        shutil.copy(logs / RECOVERY_POINTS, logs / f"{name}.tmp")
    assert look(logs).is_damaged, "nobody is at work"
    verified = verify([str(logs)], fs=InUse(), workers=1)
    assert not verified.is_damaged, verified.findings
    assert verified.records == 1


class Deleting(OsFs):
    """A topic is deleted while the directory is read."""

    def stat(self, path: str) -> FileStat:
        if path.endswith("gone-0") and Path(path).is_dir():
            Path(path).rename(f"{path}.{'0' * 32}-delete")
        return super().stat(path)


def test_a_topic_that_goes_while_partitions_are_listed(logs: Path) -> None:
    with open_dir(logs) as directory:
        directory.create_topic("gone")
        directory.create_topic("t")
    assert [str(one.topic_partition) for one in list_partitions(Deleting(), str(logs))] == ["t-0"]


def test_leftovers_and_strangers_are_noted(logs: Path) -> None:
    partition = make_dir(logs, size=5000)
    for name in (f"{7:020d}.log.deleted", f"{7:020d}.index", "leader-epoch-checkpoint.tmp", "notes.txt"):
        (partition / name).write_bytes(b"")
    (logs / ("gone-3." + "0" * 32 + "-delete")).mkdir()
    verified = look(logs)
    assert len(verified.findings) == 5
    assert not verified.is_damaged


def test_a_partition_by_itself_and_outside_of_a_log_directory(logs: Path, tmp_path: Path) -> None:
    partition = make_dir(logs, "rolled")
    assert look(partition).findings == []
    copy = tmp_path / "elsewhere" / "t-0"
    shutil.copytree(partition, copy)
    assert look(copy).findings == []
    for path in copy.iterdir():
        assert look(path).findings == [], path


def test_paths_that_are_not_kafkas_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x")
    with pytest.raises(InvalidLogDirError, match="neither a log directory nor a partition's"):
        look(tmp_path)
    with pytest.raises(InvalidLogDirError, match="not a file of Kafka's"):
        look(tmp_path / "a.txt")
    with pytest.raises(FileNotFoundError):
        look(tmp_path / "nothing")


@pytest.mark.parametrize("kind", KINDS)
def test_garbage_in_any_file_is_found_and_ends_in_no_error(logs: Path, kind: str) -> None:
    partition = make_dir(logs, kind, size=16_000)
    rng = random.Random(kind)
    for name, data in bytes_of(partition).items():
        if not data:
            continue
        for garbage in (rng.randbytes(len(data)), bytes(len(data)), rng.randbytes(3), data + rng.randbytes(40)):
            (partition / name).write_bytes(garbage)
            assert look(logs).is_damaged, name
            case()
        (partition / name).write_bytes(data)
    assert look(logs).findings == []


def test_a_broker_that_died_while_it_started(logs: Path) -> None:
    """The directory was closed and opened again, and this partition not reached yet, or just recovered."""
    partition = make_dir(logs)
    (logs / ".kafka_cleanshutdown").unlink()
    assert look(logs).findings == []
    for snapshot in partition.glob("*.snapshot"):
        snapshot.rename(partition / f"{1:020d}.snapshot")
    assert not look(logs).is_damaged
