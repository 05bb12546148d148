"""The records of a batch of magic 2, in plain Python: decode, encode (both from here), and control records.

Layout of a record (``DefaultRecord.java``); varint and varlong are zig-zag LEB128 of 32 and 64 bits:

=============== ======= ==========================================================
length          varint  of what follows
attributes      int8    unused
timestampDelta  varlong from the batch's base timestamp
offsetDelta     varint  from the batch's base offset
keyLength       varint  -1: null
key
valueLength     varint  -1: null
value
headersCount    varint  then for each: keyLength, key (UTF-8), valueLength (-1: null), value
=============== ======= ==========================================================

"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from seglog.core.errors import CorruptRecordError
from seglog.core.types import NO_EPOCH, NO_SEQUENCE
from seglog.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader, build_batch
from seglog.records.decoding import MIN_RECORD, Header, Record, decode_records, iter_records
from seglog.records.encoding import NewRecord, encode_batch, encode_records, encode_varint

__all__ = [
    "MIN_RECORD",
    "ControlRecord",
    "ControlType",
    "Header",
    "NewRecord",
    "Record",
    "decode_records",
    "encode_batch",
    "encode_records",
    "encode_varint",
    "end_txn_marker",
    "iter_records",
    "parse_control",
]


class ControlType(IntEnum):
    """What a control record says (``ControlRecordType.java``); `UNKNOWN` is of a newer Kafka and to be passed over."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


class ControlRecord(NamedTuple):
    """A control record's key, and of a transaction's end the epoch of the coordinator that wrote it (else None)."""

    version: int
    type: ControlType
    coordinator_epoch: int | None


_CONTROL_KEY: Final = Struct(">hh")
_END_TXN_VALUE: Final = Struct(">hi")
_CONTROL_TYPES: Final = {kind.value: kind for kind in ControlType}


def parse_control(record: Record) -> ControlRecord:
    """What a record of a control batch says. Raises `CorruptRecordError` on a key or marker that is too short.

    Longer keys and values and higher versions are read as version 0, as Kafka does.
    """
    key, value = record.key, record.value
    if key is None or len(key) < _CONTROL_KEY.size:
        raise CorruptRecordError("the key of a control record is under 4 bytes", offset=record.offset)
    version, code = _CONTROL_KEY.unpack_from(key)
    if version < 0:
        raise CorruptRecordError(f"version {version} of a control record", offset=record.offset)
    kind = _CONTROL_TYPES.get(code, ControlType.UNKNOWN)
    if kind not in (ControlType.ABORT, ControlType.COMMIT):
        return ControlRecord(version, kind, None)
    if value is None or len(value) < _END_TXN_VALUE.size:
        raise CorruptRecordError("the value of a transaction marker is under 6 bytes", offset=record.offset)
    value_version, epoch = _END_TXN_VALUE.unpack_from(value)
    if value_version < 0:
        raise CorruptRecordError(f"version {value_version} of a transaction marker", offset=record.offset)
    return ControlRecord(version, kind, epoch)


def end_txn_marker(
    *,
    commit: bool,
    coordinator_epoch: int,
    producer_id: int,
    producer_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = NO_EPOCH,
) -> bytearray:
    """The control batch that ends a transaction (``MemoryRecords.withEndTransactionMarker``)."""
    kind = ControlType.COMMIT if commit else ControlType.ABORT
    key = _CONTROL_KEY.pack(0, kind)
    value = _END_TXN_VALUE.pack(0, coordinator_epoch)
    return build_batch(
        BatchHeader(
            base_offset=base_offset,
            length=0,
            leader_epoch=leader_epoch,
            magic=2,
            crc=0,
            attributes=TRANSACTIONAL_BIT | CONTROL_BIT,
            last_offset_delta=0,
            base_timestamp=timestamp,
            max_timestamp=timestamp,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=NO_SEQUENCE,
            records_count=1,
        ),
        encode_records([Record(base_offset, timestamp, key, value)], base_offset=base_offset, base_timestamp=timestamp),
    )
