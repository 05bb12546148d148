"""Log directories of ours to be verified: one partition of about 64 KB in the middle of a life, closed cleanly."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

from seglog.core.fs import OsFs
from seglog.core.ground import Ground
from seglog.records.batch import Entry, entries
from seglog.records.record import NewRecord, encode_batch, end_txn_marker
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.log.admit import Origin
from seglog.storage.log.log import Log
from seglog.storage.offline.findings import Finding, Severity
from seglog.storage.offline.verify import VerifyReport, verify
from tests.kit.manual_clock import ManualClock

START_MS = 1_790_000_000_000
LOG = f"{0:020d}.log"
INDEX = f"{0:020d}.index"
TIMES = f"{0:020d}.timeindex"
PARTITION = "t-0"
KINDS = ("plain", "transactions", "rolled")
_UNCOVERED_BY_CRC = 21


def open_dir(path: Path) -> LogDir:
    return LogDir.open(str(path), ground=Ground(fs=OsFs(), clock=ManualClock(START_MS), rng=random.Random(1)))


def make_dir(path: Path, kind: str = "plain", *, size: int = 62_000, batches_of: tuple[int, ...] = (1, 3, 8)) -> Path:
    """A log directory at ``path`` with topic t; returns the partition's directory.

    Every leader epoch has batches, and time goes on from batch to batch. "transactions" has two producers and aborts,
    "rolled" the same in several segments.
    """
    with open_dir(path) as directory:
        segment_bytes = 14_000 if kind == "rolled" else 1 << 20
        config = {"internal.segment.bytes": segment_bytes, "retention.ms": -1, "message.timestamp.after.max.ms": 2**62}
        directory.create_topic("t", 1, config)
        _fill(directory.log("t"), kind, size, batches_of)
    return path / PARTITION


def _fill(log: Log, kind: str, size: int, batches_of: tuple[int, ...]) -> None:
    rng = random.Random(kind)
    now_ms, epoch = START_MS, 0
    sequences = {5: 0, 6: 0}
    log.assign_epoch(0)
    while log.size < size:
        now_ms += 100
        count = rng.choice(batches_of)
        records = [
            NewRecord(rng.randbytes(rng.randrange(300, 1200)), b"k%d" % at, now_ms + rng.randrange(50))
            for at in range(count)
        ]
        codec = rng.choice((0, 0, 4))
        if kind == "plain":
            log.append(encode_batch(records, codec=codec), leader_epoch=epoch)
        else:
            producer_id = rng.choice((5, 6))
            sequence = sequences[producer_id]
            sequences[producer_id] += count
            batch = encode_batch(
                records,
                codec=codec,
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=sequence,
                transactional=True,
            )
            log.append(batch, leader_epoch=epoch)
            if rng.random() < 0.5:
                log.append(
                    marker(producer_id, now_ms, commit=rng.random() < 0.4),
                    leader_epoch=epoch,
                    origin=Origin.COORDINATOR,
                )
        if rng.random() < 0.1:
            epoch += rng.choice((1, 2))
            log.assign_epoch(epoch)
            log.append(encode_batch([NewRecord(b"first of its epoch", timestamp=now_ms)]), leader_epoch=epoch)


def marker(producer_id: int, now_ms: int, *, commit: bool) -> bytes:
    return bytes(
        end_txn_marker(commit=commit, coordinator_epoch=1, producer_id=producer_id, producer_epoch=0, timestamp=now_ms)
    )


def damage(verified: VerifyReport) -> list[Finding]:
    return [finding for finding in verified.findings if finding.severity is Severity.DAMAGE]


def look(path: Path, *, strict: bool = False, fast: bool = False) -> VerifyReport:
    """In this thread, by the plain path unless it is said otherwise."""
    return verify([str(path)], strict=strict, fast=fast, workers=1)


def bytes_of(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(path.iterdir()) if file.is_file()}


def flip(data: bytes, position: int, bit: int) -> bytes:
    flipped = bytearray(data)
    flipped[position] ^= 1 << bit
    return bytes(flipped)


def bits_under_no_crc(name: str, data: bytes) -> Iterator[tuple[int, int]]:
    """(position, bit) of all bits of a file, but of a log only those that the CRC of a batch does not cover, or is."""
    places: Iterator[int] = iter(range(len(data)))
    if name.endswith(".log"):
        places = (
            place for entry in batches(data) for place in range(entry.position, entry.position + _UNCOVERED_BY_CRC)
        )
    for position in places:
        for bit in range(8):
            yield position, bit


def batches(data: bytes) -> list[Entry]:
    return list(entries(data))


def make_damaged_pair(directory: Path) -> tuple[Path, Path]:
    """Two replicas, of which the first is damaged in its second batch."""
    first, second = directory / "a", directory / "b"
    make_dir(first, size=20_000)
    shutil.copytree(first, second)
    path = first / "t-0" / LOG
    data = path.read_bytes()
    path.write_bytes(flip(data, batches(data)[1].position + 80, 0))
    return first, second


class Flipper:
    """Flips bits of a file in place, one at a time."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR)
        self._data = path.read_bytes()

    def flip(self, position: int, bit: int) -> None:
        os.pwrite(self._fd, bytes([self._data[position] ^ 1 << bit]), position)

    def restore(self, position: int) -> None:
        os.pwrite(self._fd, self._data[position : position + 1], position)

    def close(self) -> None:
        os.close(self._fd)
