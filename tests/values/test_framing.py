from __future__ import annotations

from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.records.column_encoding import byte_column
from seglog.records.columns import HEADERS
from seglog.values.framing import ID_BYTES, Frames, frame, id_headers, unframe
from tests.kit.confluent_registry import guid_bytes, id_bytes

_PATHS = st.lists(st.integers(0, 300), min_size=1, max_size=4).map(tuple)


def _unframe(values: list[bytes | None], framing: str, *, messages: bool = False, headers: Any = None) -> Frames:
    column = byte_column("value", pa.array(values, pa.binary()), len(values))
    ids = None if headers is None else id_headers("value", pa.array(headers, HEADERS))
    return unframe(column, framing, messages=messages, headers=ids)


def _framed(raw: bytes, framing: str, number: int, path: tuple[int, ...] | None = None) -> bytes:
    (framed,) = frame(pa.array([raw], pa.binary()), framing, number, path).to_pylist()
    assert isinstance(framed, bytes)
    return framed


def _found(values: list[bytes | None], frames: Frames) -> list[Any]:
    """Of each row, the id and path, and the bytes of the value; None for null, and the reason for a bad one."""
    whole = b"".join(value or b"" for value in values)
    out: list[Any] = []
    for row, place in enumerate(frames.places.tolist()):
        start, length = frames.spans[:, row].tolist()
        if row in frames.reasons:
            assert (place, length) == (-1, -1)
            out.append(frames.reasons[row])
        else:
            out.append(None if place < 0 else (*frames.writers[place], whole[start : start + length]))
    return out


@given(
    st.lists(st.none() | st.tuples(st.integers(0, 2**31 - 1), st.binary(max_size=9))), st.sampled_from(list(ID_BYTES))
)
def test_unframing_reverses_framing(rows: list[tuple[int, bytes] | None], framing: str) -> None:
    values = [
        None if row is None else frame(pa.array([row[1]], pa.binary()), framing, row[0])[0].as_py() for row in rows
    ]
    expected = [None if row is None else (row[0], (0,), row[1]) for row in rows]
    assert _found(values, _unframe(values, framing)) == expected


@given(st.lists(st.tuples(st.integers(0, 2**31 - 1), _PATHS, st.binary(max_size=5)), min_size=1))
def test_paths_to_messages_are_confluents(rows: list[tuple[int, tuple[int, ...], bytes]]) -> None:
    values: list[bytes | None] = []
    for number, path, raw in rows:
        confluent = id_bytes("PROTOBUF", number, path) + raw
        values.append(confluent)
        assert _framed(raw, "confluent", number, path) == confluent
    assert _found(values, _unframe(values, "confluent", messages=True)) == rows


def test_a_header_names_the_schema_else_the_prefix_does() -> None:
    guid = UUID(int=17)
    raw = guid_bytes("AVRO", str(guid))
    name = "__value_schema_id"
    values: list[bytes | None] = [b"plain", b"\0\0\0\0\5framed", b"bad", None, b"x"]
    headers = [[("a", b"1"), (name, raw)], None, [(name, b"\7")], [(name, raw)], [("__key_schema_id", raw)]]
    assert _found(values, _unframe(values, "header", headers=headers)) == [
        (str(guid), (0,), b"plain"),
        (5, (0,), b"framed"),
        "the header with the schema's id is not one of Confluent's",
        None,
        "the value has 1 bytes, too few for the id of a schema",
    ]


@given(st.binary(max_size=12))
def test_any_bytes_have_an_id_or_a_reason(raw: bytes) -> None:
    for framing in ID_BYTES:
        for messages in (False, True):
            (found,) = _found([raw], _unframe([raw], framing, messages=messages))
            if isinstance(found, tuple):
                assert raw.startswith(b"\0")
                assert raw.endswith(found[2])


@pytest.mark.parametrize(
    "raw", [b"\0\0\0\0\1", b"\0\0\0\0\1\4\2", b"\0\0\0\0\1\1", b"\0\0\0\0\1\xff\xff\xff\xff\xff\xff"]
)
def test_a_path_that_is_cut_or_negative_is_a_reason(raw: bytes) -> None:
    assert _unframe([raw], "confluent", messages=True).reasons == {
        0: "the value has no valid path to a Protobuf message"
    }
