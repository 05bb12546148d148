"""The frame before a value: the id of the schema that it was written with.

=============  ============================================================================================
framing        bytes
=============  ============================================================================================
``plain``      the value alone
``confluent``  0, the id in 4 bytes, the value
``apicurio``   0, the id in 8 bytes, the value
``header``     the value alone; the record's header ``__value_schema_id`` or ``__key_schema_id`` has 1 and the
               16 bytes of the schema's GUID. Without this header the framing is ``confluent``
=============  ============================================================================================

Numbers are big-endian. With Protobuf, the id or GUID is followed by the path to the message's type in the schema's
file: how many numbers there are, and the numbers, as zig-zag varints; a 0 alone stands for the first message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import compute

from seglog.records.column_encoding import ByteColumn
from seglog.records.intrinsics import I64
from seglog.values.value_options import APICURIO, CONFLUENT, HEADER, PLAIN

ID_BYTES: Final = {CONFLUENT: 4, APICURIO: 8, HEADER: 4}
FIRST_MESSAGE: Final = (0,)
_MAX_PATH: Final = 64
_GUID: Final = 16


class WrittenWith(NamedTuple):
    """The schema that a value was written with: its id, its GUID, or None if the value does not say. ``message`` is
    the path to a Protobuf message."""

    schema: int | str | None
    message: tuple[int, ...] = FIRST_MESSAGE


class Frames(NamedTuple):
    """Values without their frames. ``places`` has the place in ``writers`` of each row, -1 for null and for a row with
    a reason; ``spans`` are those of the values."""

    writers: list[WrittenWith]
    places: I64
    spans: I64
    reasons: dict[int, str]


def unframe(column: ByteColumn, framing: str, *, messages: bool, headers: Mapping[int, bytes] | None = None) -> Frames:
    """Separate values and ids. ``messages``: Protobuf's path follows the id. ``headers`` are those of the ids."""
    spans = column.spans.copy()
    present = spans[1] >= 0
    if framing == PLAIN:
        return Frames([WrittenWith(None)], np.where(present, 0, -1).astype(np.int64), spans, {})
    frames = _Frames(column, spans, messages)
    if headers is not None:
        frames.take_headers(headers, present)
    frames.take_prefixes(present & ~frames.done, ID_BYTES[framing])
    return frames.found()


def id_headers(column: str, headers: pa.Array) -> dict[int, bytes]:
    """The header with the schema's id of each record, from the column ``headers``. The last one of a name counts."""
    name = f"__{column}_schema_id"
    assert isinstance(headers, pa.ListArray)
    offsets = headers.offsets.to_numpy()
    pairs = headers.values
    assert isinstance(pairs, pa.StructArray)
    named = np.flatnonzero(np.asarray(pairs.field("key").to_numpy(zero_copy_only=False)) == name)
    found: dict[int, bytes] = {}
    values = pairs.field("value")
    for at in named.tolist():
        row = int(np.searchsorted(offsets, at, side="right")) - 1
        raw = values[at].as_py()
        if raw is not None:
            found[row] = raw
    return found


class _Frames:
    def __init__(self, column: ByteColumn, spans: I64, messages: bool) -> None:
        self._data = column.data
        self._spans = spans
        self._messages = messages
        self._writers: dict[WrittenWith, int] = {}
        self._reasons: dict[int, str] = {}
        self._places: I64 = np.full(spans.shape[1], -1, np.int64)
        self.done = np.zeros(spans.shape[1], np.bool_)

    def found(self) -> Frames:
        bad = list(self._reasons)
        self._spans[1, bad] = -1
        return Frames(list(self._writers), self._places, self._spans, self._reasons)

    def _number(self, writer: WrittenWith) -> int:
        return self._writers.setdefault(writer, len(self._writers))

    def take_headers(self, headers: Mapping[int, bytes], present: npt.NDArray[np.bool_]) -> None:
        for row, raw in headers.items():
            if not present[row]:
                continue
            self.done[row] = True
            if raw[:1] == b"\1" and len(raw) > _GUID:
                schema: int | str = str(UUID(bytes=raw[1 : 1 + _GUID]))
                at = 1 + _GUID
            elif raw[:1] == b"\0" and len(raw) >= 5:
                schema, at = int.from_bytes(raw[1:5], "big"), 5
            else:
                self._reasons[row] = "the header with the schema's id is not one of Confluent's"
                continue
            path = _read_path(raw, at) if self._messages else (FIRST_MESSAGE, at)
            if path is None:
                self._reasons[row] = "the header with the schema's id has no valid path to a message"
                continue
            self._places[row] = self._number(WrittenWith(schema, path[0]))

    def take_prefixes(self, rows: npt.NDArray[np.bool_], id_bytes: int) -> None:
        chosen = np.flatnonzero(rows)
        short = chosen[self._spans[1, chosen] < 1 + id_bytes]
        chosen = chosen[self._spans[1, chosen] >= 1 + id_bytes]
        for row in short.tolist():
            self._reasons[row] = f"the value has {self._spans[1, row]} bytes, too few for the id of a schema"
        at = self._spans[0, chosen]
        framed = self._data[at] == 0
        for row in chosen[~framed].tolist():
            first = int(self._data[self._spans[0, row]])
            self._reasons[row] = f"the value begins with {first:#04x}, not with 0 and the id of a schema"
        chosen, at = chosen[framed], at[framed]
        ids: I64 = np.zeros(len(chosen), np.int64)
        for byte in range(1, 1 + id_bytes):
            ids = (ids << 8) | self._data[at + byte]
        self._spans[0, chosen] += 1 + id_bytes
        self._spans[1, chosen] -= 1 + id_bytes
        if self._messages:
            self._take_paths(chosen, ids)
            return
        for one in np.unique(ids).tolist():
            self._places[chosen[ids == one]] = self._number(WrittenWith(one))

    def _take_paths(self, chosen: I64, ids: I64) -> None:
        """Most values have the one byte that stands for the first message."""
        lengths = self._spans[1, chosen]
        first = np.zeros(len(chosen), np.bool_)
        filled = lengths > 0
        first[filled] = self._data[self._spans[0, chosen[filled]]] == 0
        for one in np.unique(ids[first]).tolist():
            self._places[chosen[first & (ids == one)]] = self._number(WrittenWith(one))
        self._spans[0, chosen[first]] += 1
        self._spans[1, chosen[first]] -= 1
        for row, one in zip(chosen[~first].tolist(), ids[~first].tolist(), strict=True):
            start, length = self._spans[:, row].tolist()
            path = _read_path(self._data[start : start + length].tobytes(), 0)
            if path is None:
                self._reasons[row] = "the value has no valid path to a Protobuf message"
                continue
            self._places[row] = self._number(WrittenWith(one, path[0]))
            self._spans[0, row] += path[1]
            self._spans[1, row] -= path[1]


def _read_path(raw: bytes, at: int) -> tuple[tuple[int, ...], int] | None:
    """The path to a message and the position after it; None if it is not one."""
    count, at = _varint(raw, at)
    if not 0 <= count <= _MAX_PATH:
        return None
    path = []
    for _ in range(count):
        number, at = _varint(raw, at)
        if number < 0:
            return None
        path.append(number)
    return (tuple(path) or FIRST_MESSAGE), at


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """A zig-zag varint, and the position after it; -1 if there is none."""
    value = 0
    for shift in range(0, 35, 7):
        if at >= len(raw):
            return -1, at
        value |= (raw[at] & 0x7F) << shift
        at += 1
        if raw[at - 1] < 0x80:
            return (value >> 1) ^ -(value & 1), at
    return -1, at


def frame(values: pa.Array, framing: str, schema_id: int | None, path: tuple[int, ...] | None = None) -> pa.Array:
    """Values with the id in front; ``path`` is that of a Protobuf message. Nulls stay null."""
    if framing == PLAIN:
        return values
    assert schema_id is not None
    prefix = b"\0" + schema_id.to_bytes(ID_BYTES[framing], "big")
    if path is not None and path != FIRST_MESSAGE:
        prefix += _path_bytes(path)
    elif path is not None:
        prefix += b"\0"
    framed: pa.Array = compute.binary_join_element_wise(
        pa.scalar(prefix, pa.binary()), values, pa.scalar(b"", pa.binary())
    )
    return framed


def _path_bytes(path: tuple[int, ...]) -> bytes:
    out = bytearray()
    for number in (len(path), *path):
        raw = number << 1
        while raw > 0x7F:
            out.append((raw & 0x7F) | 0x80)
            raw >>= 7
        out.append(raw)
    return bytes(out)
