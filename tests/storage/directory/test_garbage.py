"""Garbage in each kind of file of a log directory is named, rebuilt or refused, and never trusted."""

from __future__ import annotations

import random

import pytest

from seglog.core.errors import (
    CorruptCheckpointError,
    DamagedPartitionError,
)
from seglog.records.record import NewRecord
from tests.cases import case
from tests.kit.memory_fs import MemoryFs
from tests.storage.directories import DIR, T, flushed_log, open_dir
from tests.storage.disk import prefix, values

# Garbage in each kind of file

GARBAGE = [
    pytest.param(b"", id="empty"),
    pytest.param(b"\0" * 100, id="zeros"),
    pytest.param(b"\xff" * 37, id="ones"),
    pytest.param(b"garbage\n", id="text"),
    pytest.param(bytes(range(256)) * 3, id="bytes"),
]


def closed(*, clean: bool) -> MemoryFs:
    fs, opened, _ = flushed_log()
    opened.close()
    if not clean:
        fs.unlink(f"{DIR}/.kafka_cleanshutdown")
    return fs


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_in_files_that_are_made_anew(garbage: bytes, clean: bool) -> None:
    paths = [path for path in closed(clean=clean).files() if path.endswith(("index", ".snapshot"))]
    assert len(paths) == 9
    for path in paths:
        case()
        fs = closed(clean=clean)
        before = fs.read(path)
        fs.write(path, garbage)
        with open_dir(fs) as opened:
            assert values(opened.log("t")) == prefix(30)
        # Not seen here, and harmless: an empty index has no entries; a snapshot that is not the last is not read
        if (path.endswith("index") and garbage) or path.endswith("30.snapshot"):
            assert fs.read(path) == before
    txnindex = f"{DIR}/t-0/{0:020d}.txnindex"
    fs = closed(clean=clean)
    fs.write(txnindex, garbage)
    with open_dir(fs) as opened:
        assert values(opened.log("t")) == prefix(30)
    assert fs.files().get(txnindex, b"") == b""


@pytest.mark.parametrize("garbage", GARBAGE[1:])
@pytest.mark.parametrize(
    "name", ["recovery-point-offset-checkpoint", "replication-offset-checkpoint", "log-start-offset-checkpoint"]
)
def test_garbage_in_checkpoints_is_noted_and_written_anew(name: str, garbage: bytes) -> None:
    for clean in (True, False):
        fs = closed(clean=clean)
        fs.write(f"{DIR}/{name}", garbage)
        with open_dir(fs) as opened:
            (error,) = opened.checkpoints.unreadable
            assert str(error).startswith(f"{DIR}/{name}")
            assert values(opened.log("t")) == prefix(30)
        with open_dir(fs) as opened:
            assert opened.checkpoints.unreadable == []


@pytest.mark.parametrize("garbage", GARBAGE[1:])
@pytest.mark.parametrize("name", ["leader-epoch-checkpoint", "partition.metadata"])
def test_garbage_in_a_partitions_own_files_refuses_it(name: str, garbage: bytes) -> None:
    fs = closed(clean=True)
    fs.write(f"{DIR}/t-0/{name}", garbage)
    before = {path: data for path, data in fs.files().items() if "/t-0/" in path}
    with open_dir(fs) as opened, pytest.raises(CorruptCheckpointError, match=f"{DIR}/t-0/{name}"):
        opened.log("t")
    assert {path: data for path, data in fs.files().items() if "/t-0/" in path} == before


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_in_a_log_is_damage_when_it_was_flushed(garbage: bytes) -> None:
    fs = closed(clean=False)
    logs = sorted(path for path in fs.files() if path.endswith(".log"))
    last = logs[-1]
    fs.write(last, garbage)
    with open_dir(fs) as opened, pytest.raises(DamagedPartitionError, match=f"{last}, position 0, offset"):
        opened.log("t")
    assert fs.read(last) == garbage


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_in_the_marker_is_a_clean_shutdown_and_in_the_lock_nothing(garbage: bytes) -> None:
    fs = closed(clean=True)
    fs.write(f"{DIR}/.kafka_cleanshutdown", garbage)
    fs.write(f"{DIR}/.lock", garbage)
    with open_dir(fs) as opened:
        assert opened.reports[T].clean
        assert values(opened.log("t")) == prefix(30)


def test_garbage_in_meta_properties_is_named_and_nothing_is_changed() -> None:
    fs = closed(clean=True)
    fs.write(f"{DIR}/meta.properties", b"version=9\n")
    before = fs.files()
    with pytest.raises(CorruptCheckpointError, match=f"{DIR}/meta.properties: line 1"):
        open_dir(fs)
    assert fs.files() == before


def test_random_garbage_anywhere_opens_or_is_refused() -> None:
    """P11: any bytes on disk start or are refused with a clear error; flushed records are never lost unsaid."""
    pristine = closed(clean=False)
    paths = sorted(path for path, data in pristine.files().items() if data and not path.endswith(".lock"))
    for seed in range(400):
        case()
        rng = random.Random(seed)
        fs = closed(clean=bool(seed % 2))
        path = rng.choice(paths)
        data = bytearray(fs.read(path))
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(data))
            data[at : at + rng.randrange(1, 9)] = rng.randbytes(rng.randrange(0, 9))
        fs.write(path, bytes(data))
        if path.endswith(("meta.properties", "seglog.topics")):
            open_or_name(fs, path)
            continue
        opened = open_dir(fs)
        if not opened.refused:
            log = opened.log("t")
            assert log.log_end_offset >= 30 or path.endswith("recovery-point-offset-checkpoint")
            log.append_records([NewRecord(b"x")])
        opened.close()


def open_or_name(fs: MemoryFs, path: str) -> None:
    try:
        open_dir(fs).close()
    except CorruptCheckpointError as error:
        if error.file != path:
            raise
