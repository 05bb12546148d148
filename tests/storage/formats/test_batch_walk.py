"""A walk in windows of any size finds the batches that a walk in memory finds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.core.errors import CorruptBatchError
from seglog.records.batch import entries, last_offset_of
from seglog.records.record import NewRecord, encode_batch
from seglog.storage.formats.batch_walk import walk
from tests.kit.memory_fs import MemoryFs

_SIZES = st.lists(st.integers(0, 400), max_size=12)


def _file(data: bytes) -> MemoryFs:
    fs = MemoryFs()
    file = fs.open("/log", create=True)
    file.pwrite(data, 0)
    return fs


@given(_SIZES, st.integers(0, 70), st.integers(61, 600), st.booleans())
def test_windows_of_any_size_find_every_batch(sizes: list[int], cut: int, window: int, whole: bool) -> None:
    data = b"".join(bytes(encode_batch([NewRecord(bytes(size), timestamp=1)])) for size in sizes)
    data = data[: max(len(data) - cut, 0)]
    file = _file(data).open("/log", write=False)
    found = [
        (position, entry.size, entry.magic, last_offset_of(chunk, entry), whole and bytes(chunk[entry.position :])[:69])
        for entry, position, chunk in walk(file, window=window, whole=whole)
    ]
    assert found == [
        (entry.position, entry.size, entry.magic, last_offset_of(data, entry), whole and data[entry.position :][:69])
        for entry in entries(data)
    ]


@pytest.mark.parametrize("whole", [True, False])
def test_damage_is_named_by_file_and_position(whole: bool) -> None:
    batch = bytes(encode_batch([NewRecord(b"v", timestamp=1)]))
    file = _file(batch + b"\xff" * 100).open("/log", write=False)
    with pytest.raises(CorruptBatchError, match=rf"^/log, position {len(batch)}, offset -1: unknown magic -1$"):
        list(walk(file, window=64, whole=whole))
