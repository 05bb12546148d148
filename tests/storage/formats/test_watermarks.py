"""``seglog.watermarks``: readers see what the writer published; a file without a lock on it is ignored."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.core.errors import CorruptCheckpointError
from seglog.core.fs import OsFs
from seglog.core.types import MAX_INT32, MAX_INT64, TopicPartition
from seglog.storage.formats.watermarks import GONE, Watermark, decode_watermarks, encode_watermarks, read_watermarks
from tests.cases import case

OFFSETS = st.integers(0, MAX_INT64)
PARTITIONS = st.builds(TopicPartition, st.text("abc.-_é", min_size=1, max_size=20), st.integers(0, MAX_INT32))
MARKS = st.dictionaries(PARTITIONS, st.builds(Watermark, OFFSETS, OFFSETS))


@given(MARKS, st.binary(max_size=40))
def test_what_is_written_is_read_whatever_is_behind_it(marks: dict[TopicPartition, Watermark], room: bytes) -> None:
    case()
    data = encode_watermarks(marks)
    assert len(data) % 8 == 0
    assert decode_watermarks(data + room) == marks


@given(MARKS, st.data())
def test_a_partition_that_is_gone_is_not_there(marks: dict[TopicPartition, Watermark], data: st.DataObject) -> None:
    case()
    gone = data.draw(st.sets(st.sampled_from(sorted(marks)))) if marks else set()
    written = {key: mark._replace(high=GONE) if key in gone else mark for key, mark in marks.items()}
    assert decode_watermarks(encode_watermarks(written)) == {key: marks[key] for key in marks.keys() - gone}


@given(MARKS.filter(bool), st.data())
def test_no_bytes_do_more_than_raise(marks: dict[TopicPartition, Watermark], data: st.DataObject) -> None:
    case()
    damaged = bytearray(encode_watermarks(marks))
    at = data.draw(st.integers(0, len(damaged) - 1))
    damaged[at] ^= data.draw(st.integers(1, 255))
    try:
        decode_watermarks(bytes(damaged[: data.draw(st.integers(0, len(damaged)))]))
    except CorruptCheckpointError:
        return


def test_the_layout_is_the_documented_one() -> None:
    data = encode_watermarks({TopicPartition("flights", 3): Watermark(1200, 1180)})
    assert data == (
        b"seglogwm"
        + (48).to_bytes(8, "little")
        + (1200).to_bytes(8, "little")
        + (1180).to_bytes(8, "little")
        + (3).to_bytes(4, "little")
        + (7).to_bytes(2, "little")
        + b"flights"
        + bytes(3)
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a watermark file of this version"),
        (b"0\n1\nt 0 12 12\n    ", "not a watermark file of this version"),
        (encode_watermarks({TopicPartition("t", 0): Watermark(1, 1)})[:-8], r"entries up to 40 in a file of 32 bytes"),
        (b"seglogwm" + (24).to_bytes(8, "little") + bytes(8), "not the entry of a partition"),
        (b"seglogwm" + (48).to_bytes(8, "little") + bytes(32), "not the entry of a partition"),
    ],
)
def test_malformed_file_is_refused_with_path_and_position(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "seglog.watermarks"
    path.write_bytes(data)
    lock = OsFs().lock(str(path))
    with pytest.raises(CorruptCheckpointError, match=rf"(?s){re.escape(str(path))}.*{message}|{message}.*{path}"):
        read_watermarks(OsFs(), str(tmp_path))
    lock.release()


def test_only_a_living_writer_is_believed(tmp_path: Path) -> None:
    marks = {TopicPartition("t", 0): Watermark(9, 8)}
    assert read_watermarks(OsFs(), str(tmp_path)) is None
    path = tmp_path / "seglog.watermarks"
    path.write_bytes(encode_watermarks(marks))
    assert read_watermarks(OsFs(), str(tmp_path)) is None
    lock = OsFs().lock(str(path))
    assert read_watermarks(OsFs(), str(tmp_path)) == marks
    lock.release()
    assert read_watermarks(OsFs(), str(tmp_path)) is None
