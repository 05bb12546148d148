"""Append and sequential read beside bare system calls: the same bytes, in files of the same sizes.

The bare side writes ready batches of 16 KiB with `os.write` and begins a new file, and new pre-allocated index files,
where the log does; it reads with `os.pread` in pieces of 1 MiB. Both stay in the page cache, and files are removed
between the rounds, outside of the time that is taken.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from pathlib import Path
from typing import Final

from bench.sides import Compared, turn_about
from seglog.records.record import NewRecord, encode_batch
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.log.admit import Origin
from seglog.storage.log.log import Log

_BATCHES: Final = 16_384
_SEGMENT: Final = 128 << 20
_INDEX: Final = 10 << 20
_PIECE: Final = 1 << 20


def _batch() -> bytes:
    rng = random.Random(1)
    records = [NewRecord(rng.randbytes(1000), key=b"key-%06d" % at) for at in range(16)]
    batch = bytes(encode_batch(records))
    assert 16_000 < len(batch) < 16_500
    return batch


def _append(directory: LogDir, batch: bytes) -> Log:
    directory.create_topic("t", config={"segment.bytes": _SEGMENT})
    log = directory.log("t")
    append = log.append
    for _ in range(_BATCHES):
        append(batch, origin=Origin.CLIENT)
    return log


def _write(path: Path, batch: bytes) -> None:
    path.mkdir()
    write = os.write
    fd = size = -1
    for number in range(_BATCHES):
        if fd < 0 or size + len(batch) > _SEGMENT:
            if fd >= 0:
                os.close(fd)
            for suffix in (".index", ".timeindex"):
                with open(path / f"{number:020d}{suffix}", "wb") as index:
                    index.truncate(_INDEX)
            fd = os.open(path / f"{number:020d}.log", os.O_RDWR | os.O_CREAT)
            size = 0
        write(fd, batch)
        size += len(batch)
    os.close(fd)


def _compare_append(root: Path, batch: bytes) -> Compared:
    def ours(path: Path) -> None:
        directory = LogDir.open(str(path), background=True)
        _append(directory, batch)
        directory.health.failed(OSError("the benchmark drops its files"))  # close without flushing them
        directory.close()

    place = root / "log"
    return turn_about(
        lambda: ours(place),
        lambda: _write(place, batch),
        before=lambda: shutil.rmtree(place, ignore_errors=True),
    )


def _compare_read(root: Path, batch: bytes) -> Compared:
    with LogDir.open(str(root / "read"), background=True) as directory:
        log = _append(directory, batch)
        paths = [segment.paths.log for segment in log.segments]

        def ours() -> int:
            offset, total, end = 0, 0, log.high_watermark
            while offset < end:
                fetched = log.read(offset, _PIECE)
                data = fetched.read()
                total += len(data)
                offset += len(data) // len(batch) * 16
            return total

        def bare() -> int:
            total = 0
            for path in paths:
                fd = os.open(path, os.O_RDONLY)
                position = 0
                while data := os.pread(fd, _PIECE, position):
                    position += len(data)
                os.close(fd)
                total += position
            return total

        return turn_about(ours, bare)


def main() -> None:
    batch = _batch()
    megabytes = _BATCHES * len(batch) / 1e6
    print(
        f"{_BATCHES} batches of {len(batch)} bytes, segments of {_SEGMENT >> 20} MiB; medians of 5 rounds, turn about"
    )
    with tempfile.TemporaryDirectory(prefix="seglog-bench-") as name:
        for title, compared in (
            ("append", _compare_append(Path(name), batch)),
            ("sequential read", _compare_read(Path(name), batch)),
        ):
            ours, bare = compared
            print(
                f"{title:16} seglog {megabytes / ours.wall:7.0f} MB/s, bare {megabytes / bare.wall:7.0f} MB/s: "
                f"{compared.wall_ratio:.2f}x the time, {compared.cpu_ratio:.2f}x the CPU"
            )


if __name__ == "__main__":
    main()
