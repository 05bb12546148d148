"""Logs for the benchmarks, made quickly: columns that compiled loops encode into batches, and recovery's indexes."""

from __future__ import annotations

import os
import random
import shutil
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from seglog.core.types import MAX_INT32
from seglog.records.column_encoding import encode_columns
from seglog.records.compression import Codec
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.formats.paths import CLEAN_SHUTDOWN

_OVERHEAD: Final = 8 + 14
"""Bytes of a record beside its value, about: a key of 8, and lengths."""
_POOL: Final = 1 << 15
"""Records of different contents."""
_ROWS: Final = 1 << 13
"""Records that are encoded at a time."""
_TIME: Final = 1_790_000_000_000
_WORDS: Final = b"the flight was late again, "


class Recipe(NamedTuple):
    """What a log is made of: a short key, a value of which half are random letters and half words."""

    value_bytes: int
    codec: Codec = Codec.NONE
    batch_bytes: int = 16_384
    """Bytes of a batch before compression; 1 makes batches of one record."""

    def __str__(self) -> str:
        value = f"{self.value_bytes} B" if self.value_bytes < 1000 else f"{self.value_bytes // 1000} KB"
        batch = f"{self.batch_bytes >> 10} KB" if self.batch_bytes > 1 else "one record"
        return f"values of {value}, batches of {batch}, {self.codec.name.lower()}"


class Made(NamedTuple):
    """A partition of one segment that was closed cleanly. ``plain_bytes`` are its bytes before compression, about."""

    log: Path
    size: int
    plain_bytes: int
    records: int


def megabytes() -> int:
    """How large logs shall be before compression, in MiB."""
    return int(os.environ.get("SEGLOG_BENCH_MB", "256"))


def rounds() -> int:
    return int(os.environ.get("SEGLOG_BENCH_ROUNDS", "3"))


def make(root: Path, recipe: Recipe, size: int) -> Made:
    """A log directory at ``root`` with the partition ``t-0``, of about ``size`` bytes before compression."""
    shutil.rmtree(root, ignore_errors=True)
    with LogDir.open(str(root)) as directory:
        config = {"segment.bytes": MAX_INT32, "segment.ms": 1 << 50, "retention.ms": -1}
        directory.create_topic("t", config=config)
        path = Path(directory.log("t").active.paths.log)
    plain = records = 0
    with path.open("wb") as file:
        for columns in _columns(recipe, size):
            file.write(
                encode_columns(
                    columns,
                    batch_bytes=recipe.batch_bytes,
                    codec=recipe.codec,
                    base_offset=records,
                    leader_epoch=0,
                )
            )
            records += columns.num_rows
            plain += columns.num_rows * (recipe.value_bytes + _OVERHEAD)
    (root / CLEAN_SHUTDOWN).unlink()
    with LogDir.open(str(root)) as directory:  # makes the indexes
        assert directory.log("t").log_end_offset == records
    return Made(path, path.stat().st_size, plain, records)


def write_log(root: Path, columns: Callable[[int], Iterator[pa.RecordBatch]], partitions: int) -> Path:
    """A log directory at ``root`` with the topic ``t``; ``columns`` are those of a partition's records, in batches of
    16 KiB."""
    with LogDir.open(str(root)) as directory:
        directory.create_topic("t", partitions, {"segment.bytes": MAX_INT32, "segment.ms": 1 << 50, "retention.ms": -1})
        paths = [Path(directory.log("t", number).active.paths.log) for number in range(partitions)]
    for number, path in enumerate(paths):
        records = 0
        with path.open("wb") as file:
            for one in columns(number):
                file.write(encode_columns(one, base_offset=records, leader_epoch=0))
                records += one.num_rows
    (root / CLEAN_SHUTDOWN).unlink()
    with LogDir.open(str(root)):  # makes the indexes
        pass
    return root


def _columns(recipe: Recipe, size: int) -> Iterator[pa.RecordBatch]:
    rng = random.Random(1)
    noise = b64encode(rng.randbytes(1 << 20))
    half = recipe.value_bytes // 2
    words = (_WORDS * (half // len(_WORDS) + 1))[: recipe.value_bytes - half]
    starts = [rng.randrange(len(noise) - half) for _ in range(_POOL)]
    values = pa.array([noise[start : start + half] + words for start in starts], pa.binary())
    keys = pa.array([b"%08d" % rng.randrange(10**8) for _ in range(_POOL)], pa.binary())
    records = size // (recipe.value_bytes + _OVERHEAD)
    for first in range(0, records, _ROWS):
        rows = min(_ROWS, records - first)
        at = rng.randrange(_POOL - rows)
        times = pa.array(np.arange(_TIME + first, _TIME + first + rows), pa.int64())
        arrays = [keys.slice(at, rows), values.slice(at, rows), times]
        yield pa.RecordBatch.from_arrays(arrays, names=["key", "value", "timestamp"])
