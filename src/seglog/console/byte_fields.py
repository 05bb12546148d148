"""Names for the bytes of a batch, of a record and of index entries, as the console shows them beside their hex. Pure.

The layouts are those of `seglog.records.batch`, `seglog.records.record`, `seglog.records.legacy` and
`seglog.storage.log.index`. Values are shown, not checked: damaged bytes have names, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from seglog.core.errors import CorruptRecordError
from seglog.records.batch import (
    BATCH_OVERHEAD,
    CODEC_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    MAGIC_POSITION,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    read_header,
)
from seglog.records.compression import Codec

_TYPES: Final = {"q": "int64", "i": "int32", "b": "int8", "I": "uint32", "h": "int16"}
_BATCH: Final = (
    ("baseOffset", "q"),
    ("batchLength", "i"),
    ("partitionLeaderEpoch", "i"),
    ("magic", "b"),
    ("crc", "I"),
    ("attributes", "h"),
    ("lastOffsetDelta", "i"),
    ("baseTimestamp", "q"),
    ("maxTimestamp", "q"),
    ("producerId", "q"),
    ("producerEpoch", "h"),
    ("baseSequence", "i"),
    ("recordsCount", "i"),
)
_MESSAGE: Final = (("offset", "q"), ("size", "i"), ("crc", "I"), ("magic", "b"), ("attributes", "b"))
_KINDS: Final = {
    "index": (("relativeOffset", "i"), ("position", "i")),
    "timeindex": (("timestamp", "q"), ("relativeOffset", "i")),
    "txnindex": (
        ("version", "h"),
        ("producerId", "q"),
        ("firstOffset", "q"),
        ("lastOffset", "q"),
        ("lastStableOffset", "q"),
    ),
}
_SHOWN: Final = 80
_LONGEST_VARINT: Final = 10


class ByteField(NamedTuple):
    """``size`` bytes from ``at`` on; ``value`` is text or a number, ``note`` explains it."""

    at: int
    size: int
    name: str
    type: str
    value: int | str | None
    note: str = ""


def batch_fields(data: bytes) -> list[ByteField]:
    """The header of the batch or message that begins ``data``, and its records as one field. ``data`` may be cut."""
    if len(data) <= MAGIC_POSITION:
        return _rest(data, 0, "bytes", "not even the prefix of a batch")
    if data[MAGIC_POSITION] < 2:
        return _message_fields(data)
    fields = list(_fixed(data, 0, _BATCH))
    if len(data) < BATCH_OVERHEAD:
        return fields
    header = read_header(data)
    notes = {
        "batchLength": f"the whole batch has {header.size} bytes",
        "partitionLeaderEpoch": "set by the leader; the CRC does not cover it",
        "crc": "CRC-32C from attributes to the end",
        "attributes": _attributes(header.attributes),
        "lastOffsetDelta": f"last offset {header.last_offset}",
        "baseTimestamp": "the delete horizon" if header.delete_horizon_ms is not None else "",
        "producerId": "none" if header.producer_id < 0 else "",
        "recordsCount": "0: compaction emptied the batch" if header.records_count == 0 else "",
    }
    fields = [one._replace(note=notes.get(one.name, "")) for one in fields]
    codec = header.attributes & CODEC_MASK
    note = f"one stream, {_codec(codec)}" if codec else f"{header.records_count} records"
    size = max(header.size - BATCH_OVERHEAD, 0)
    return [*fields, ByteField(BATCH_OVERHEAD, size, "records", "bytes", f"{size} bytes", note)]


def entry_fields(kind: str, data: bytes, base_offset: int) -> list[ByteField]:
    """The entry of an index (``index``, ``timeindex`` or ``txnindex``) that begins ``data``."""
    return [
        one._replace(note=f"offset {base_offset + one.value}")
        if one.name == "relativeOffset" and isinstance(one.value, int)
        else one
        for one in _fixed(data, 0, _KINDS[kind])
    ]


def entry_size(kind: str) -> int:
    return sum(Struct(f">{code}").size for _, code in _KINDS[kind])


def record_fields(records: bytes, number: int) -> tuple[int, int, list[ByteField]]:
    """Where record ``number`` of a batch's decompressed records begins and ends, and its fields from there on.

    `CorruptRecordError` if the records end before.
    """
    position = 0
    try:
        for _ in range(number):
            length, size = _varint(records, position)
            if length < 0:
                raise IndexError
            position += size + length
        length, size = _varint(records, position)
        end = position + size + length
        if length < 0 or end > len(records):
            raise IndexError
        return position, end, list(_record(records[position:end]))
    except IndexError:
        raise CorruptRecordError(f"record {number} is not in the batch's {len(records)} bytes of records") from None


def _record(data: bytes) -> Iterator[ByteField]:
    reader = _Varints(data)
    yield reader.take("length", "bytes after this field")
    yield ByteField(reader.at, 1, "attributes", "int8", data[reader.at], "unused")
    reader.at += 1
    yield reader.take("timestampDelta", "from the batch's baseTimestamp", "varlong")
    yield reader.take("offsetDelta", "from the batch's baseOffset")
    yield from reader.nullable("key")
    yield from reader.nullable("value")
    count = reader.take("headersCount", "")
    yield count
    for number in range(int(count.value or 0)):
        yield from reader.nullable(f"header {number} key")
        yield from reader.nullable(f"header {number} value")


class _Varints:
    """Reads the fields of a record from ``at`` on. IndexError behind its end."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, name: str, note: str, type_: str = "varint") -> ByteField:
        value, size = _varint(self.data, self.at)
        field = ByteField(self.at, size, name, type_, value, note)
        self.at += size
        return field

    def nullable(self, name: str) -> Iterator[ByteField]:
        length = self.take(f"{name}Length", "")
        size = int(length.value or 0)
        yield length._replace(note="null") if size < 0 else length
        if size > 0:
            if self.at + size > len(self.data):
                raise IndexError
            yield ByteField(self.at, size, name, "bytes", _text(self.data[self.at : self.at + size]))
            self.at += size


def _message_fields(data: bytes) -> list[ByteField]:
    """A message of format 0 or 1."""
    fields = list(_fixed(data, 0, (*_MESSAGE, *((("timestamp", "q"),) if data[MAGIC_POSITION] else ()))))
    at = sum(one.size for one in fields)
    for name in ("key", "value"):
        part = list(_fixed(data, at, ((f"{name}Length", "i"),)))
        if not part:
            break
        fields += part
        at += part[0].size
        size = max(int(part[0].value or 0), 0)
        if size:
            fields.append(ByteField(at, size, name, "bytes", _text(data[at : at + size])))
            at += size
    return fields


def _fixed(data: bytes, at: int, layout: tuple[tuple[str, str], ...]) -> Iterator[ByteField]:
    """Fields of fixed size, as far as there are bytes."""
    for name, code in layout:
        shape = Struct(f">{code}")
        if at + shape.size > len(data):
            return
        yield ByteField(at, shape.size, name, _TYPES[code], shape.unpack_from(data, at)[0])
        at += shape.size


def _rest(data: bytes, at: int, name: str, note: str) -> list[ByteField]:
    return [ByteField(at, len(data) - at, name, "bytes", f"{len(data) - at} bytes", note)] if len(data) > at else []


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A zig-zag varint and its size. IndexError if it does not end.

    >>> _varint(b"\\x01", 0), _varint(b"\\xac\\x02", 0)
    ((-1, 1), (150, 2))
    """
    raw = shift = size = 0
    while True:
        byte = data[at + size]
        size += 1
        raw |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return raw >> 1 ^ -(raw & 1), size
        if size == _LONGEST_VARINT:
            raise IndexError


def _codec(codec: int) -> str:
    return Codec(codec).name.lower() if codec <= max(Codec) else f"codec {codec}"


def _attributes(attributes: int) -> str:
    words = [_codec(attributes & CODEC_MASK)]
    words.append("LogAppendTime" if attributes & TIMESTAMP_TYPE_BIT else "CreateTime")
    if attributes & TRANSACTIONAL_BIT:
        words.append("transactional")
    if attributes & CONTROL_BIT:
        words.append("control")
    if attributes & DELETE_HORIZON_BIT:
        words.append("has delete horizon")
    return ", ".join(words)


def _text(data: bytes) -> str:
    shown = data[:_SHOWN].decode("utf-8", "replace")
    return shown if len(data) <= _SHOWN else f"{shown}… ({len(data)} bytes)"
