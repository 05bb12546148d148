"""Batches of any size, read from any of them on: sizes lie around every limit of the reader's buffers."""

from __future__ import annotations

import os
import random
from itertools import accumulate
from pathlib import Path
from typing import Final, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.core.errors import OffsetOutOfRangeError
from seglog.core.fs import File, OsFs
from seglog.records.batch import BATCH_OVERHEAD
from seglog.records.column_decoding import Selection
from seglog.records.compression import Codec
from seglog.records.record import NewRecord, encode_batch
from seglog.storage.offline import table_batches
from seglog.storage.offline.table_batches import FileRange, iter_decoded
from tests.cases import case

CHUNK: Final = 4096
NEAR: Final = st.integers(-70, 70)
SIZES: Final = st.one_of(
    st.integers(1, 200),
    st.builds(lambda limit, near: max(limit + near, 1), st.sampled_from([CHUNK // 2, CHUNK, 2 * CHUNK]), NEAR),
    st.integers(CHUNK, 10 * CHUNK),
)


def _batches(sizes: list[int], codec: Codec) -> list[bytearray]:
    """Three records in each; their values do not compress, so that a batch is as large as it says."""
    made: list[bytearray] = []
    for number, size in enumerate(sizes):
        value = random.Random(number).randbytes(max(size - BATCH_OVERHEAD, 0))
        made.append(
            encode_batch([NewRecord(b"a"), NewRecord(value), NewRecord(None)], base_offset=3 * number, codec=codec)
        )
    return made


def _offsets(log: Path, start: int, wanted: Selection, *, is_checked: bool = True) -> list[int]:
    stretch = FileRange(str(log), start, is_checked=is_checked)
    found: list[int] = []
    for part in iter_decoded(OsFs(), stretch, wanted, chunk_bytes=CHUNK):
        if part.rows is not None:
            found += part.rows.column("offset").to_pylist()
    return found


@given(st.data(), st.lists(SIZES, min_size=1, max_size=8), st.sampled_from([Codec.NONE, Codec.ZSTD, Codec.GZIP]))
def test_reads_any_batch_size_from_any_start(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, sizes: list[int], codec: Codec
) -> None:
    case()
    batches = _batches(sizes, codec)
    log = tmp_path_factory.mktemp("sizes") / f"{0:020d}.log"
    log.write_bytes(b"".join(batches))
    at = data.draw(st.integers(0, len(batches) - 1))
    low = 3 * at + data.draw(st.integers(0, 2))
    high = data.draw(st.integers(low, 3 * len(batches)))
    start = [0, *accumulate(map(len, batches))][at]
    wanted = Selection(columns=("offset",), low=low, high=high)
    assert _offsets(log, start, wanted) == list(range(low, high))
    if start:
        with pytest.raises(OffsetOutOfRangeError, match="was replaced"):
            _offsets(log, start, wanted._replace(low=3 * at - 1, high=3 * at + 1))


def test_checks_only_the_first_batch_against_the_lowest_offset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk of many small batches comes as several tables; only the first of them begins where the stretch does."""
    monkeypatch.setattr(table_batches, "_TABLE_ROWS", 4)
    batches = _batches([1] * 20, Codec.NONE)
    log = tmp_path / f"{0:020d}.log"
    log.write_bytes(b"".join(batches))
    assert _offsets(log, len(batches[0]), Selection(columns=("offset",), low=3)) == list(range(3, 60))


class _Reads(OsFs):
    """Keeps the size of every read."""

    __slots__ = ("sizes",)

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def open(self, path: str, *, create: bool = False, write: bool = True) -> File:
        file, sizes = super().open(path, create=create, write=write), self.sizes
        pread = file.pread

        class Counted:
            def __getattr__(self, name: str) -> object:
                return getattr(file, name)

            def pread(self, size: int, position: int) -> bytes:
                sizes.append(size)
                return pread(size, position)

        return cast(File, Counted())


def test_reads_a_chunk_or_one_larger_batch_at_a_time(tmp_path: Path) -> None:
    batches = _batches([100, 5 * CHUNK, 100, CHUNK, 100, 3 * CHUNK], Codec.NONE)
    log = tmp_path / f"{0:020d}.log"
    log.write_bytes(b"".join(batches))
    fs = _Reads()
    for _ in iter_decoded(fs, FileRange(str(log), len(batches[0])), Selection(low=3), chunk_bytes=CHUNK):
        pass
    assert max(fs.sizes) == max(map(len, batches))
    assert sum(fs.sizes) < 3 * os.path.getsize(log)
