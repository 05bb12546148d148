"""Dates and times of all of Arrow's years, as writers of values get them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.core.errors import InvalidRecordError
from seglog.core.types import MAX_INT64
from seglog.values.json.format import JsonFormat, write_json
from seglog.values.protobuf.format import ProtobufFormat
from seglog.values.python_values import _text, python_values, refuse_far
from seglog.values.schemas import SchemaText

UTC = pa.timestamp("us", tz="UTC")
LOCAL = pa.timestamp("us")
FAR = {
    UTC: (253_402_300_800_000_000, "+10000-01-01T00:00:00Z"),
    LOCAL: (-62_135_596_800_000_001, "0000-12-31T23:59:59.999999"),
    pa.date32(): (2_932_897, "+10000-01-01"),
}


def _times(kind: pa.DataType, numbers: list[int | None]) -> Any:
    return pa.array(numbers, pa.int32() if kind == pa.date32() else pa.int64()).view(kind)


@given(st.integers(-MAX_INT64, MAX_INT64))
def test_texts_are_those_of_numpy(micros: int) -> None:
    """It has no sign before later years, and three digits and a sign before 1 BC."""
    ours, theirs = _text(pa.scalar(micros, LOCAL)), str(np.datetime64(micros, "us"))
    assert ours.lstrip("+-").lstrip("0") == theirs.removesuffix(".000000").lstrip("-").lstrip("0")
    assert ours.startswith("-") == theirs.startswith("-")


@given(st.datetimes())
def test_texts_are_those_of_python(time: Any) -> None:
    assert _text(pa.scalar(time, LOCAL)) == time.isoformat()
    assert _text(pa.scalar(time.date(), pa.date32())) == time.date().isoformat()


@pytest.mark.parametrize("kind", FAR)
def test_a_far_time_at_any_depth(kind: pa.DataType) -> None:
    number, text = FAR[kind]
    flat = _times(kind, [number, None, 0])
    near = flat[2].as_py()
    assert python_values(flat, str) == [text, None, near]
    struct = pa.StructArray.from_arrays([flat, pa.array([1, 2, 3])], names=["at", "n"])
    assert python_values(struct, str) == [{"at": text, "n": 1}, {"at": None, "n": 2}, {"at": near, "n": 3}]
    listed = pa.array([[1, 2], [3]], pa.list_(pa.int64()))
    listed = pa.Array.from_buffers(pa.list_(kind), 2, listed.buffers()[:2], children=[flat])
    assert python_values(listed, str) == [[text, None], [near]]
    keyed = pa.MapArray.from_arrays(pa.array([0, 1, 1], pa.int32()), flat.slice(0, 1), struct.slice(0, 1))
    assert python_values(keyed, str) == [[(text, {"at": text, "n": 1})], []]
    with pytest.raises(InvalidRecordError, match=r"^row 1: .* is outside of the years 1 to 9999"):
        python_values(flat.take(pa.array([2, 0])), refuse_far)


@pytest.mark.parametrize(("kind", "name"), [(UTC, "timestamp"), (LOCAL, "timestamp_ntz"), (pa.date32(), "date")])
def test_json_for_readers_ends_with_the_year_9999(kind: pa.DataType, name: str) -> None:
    number, text = FAR[kind]
    rows = pa.StructArray.from_arrays([_times(kind, [0, number])], names=["at"])
    with pytest.raises(InvalidRecordError, match=r"row 1: .* is outside of the years 1 to 9999"):
        JsonFormat(SchemaText("JSON", f"at {name}")).encode(rows)
    assert write_json(rows).to_pylist()[1] == f'{{"at":"{text}"}}'.encode()


def test_timestamps_of_protobuf_end_with_the_year_9999() -> None:
    schema = (
        'syntax = "proto3"; import "google/protobuf/timestamp.proto"; message M { google.protobuf.Timestamp at = 1; }'
    )
    rows = pa.StructArray.from_arrays([_times(UTC, [0, FAR[UTC][0]])], names=["at"])
    with pytest.raises(InvalidRecordError, match=r"row 1: \+10000-01-01T00:00:00Z is outside of the years 1 to 9999"):
        ProtobufFormat(SchemaText("PROTOBUF", schema), None).encode(rows)
