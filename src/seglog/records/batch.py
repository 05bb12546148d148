"""The header of a record batch (magic 2): read, check, patch in place; and a walk over batches of any format.

Layout, all integers big-endian (``DefaultRecordBatch.java``):

===== ==== ==================== ==================================================================================
 off  len  field                 note
===== ==== ==================== ==================================================================================
   0    8  baseOffset            0 from a client; the log overwrites it
   8    4  batchLength           bytes after this field: the whole batch is batchLength + 12
  12    4  partitionLeaderEpoch  set by the leader; not under the CRC
  16    1  magic                 2; at the same place in formats 0 and 1
  17    4  crc                   CRC-32C of bytes 21 to the end
  21    2  attributes            bits 0-2 codec, 3 timestamp type, 4 transactional, 5 control, 6 has delete horizon
  23    4  lastOffsetDelta       last offset - base offset; kept by compaction
  27    8  baseTimestamp         or the delete horizon, with bit 6
  35    8  maxTimestamp
  43    8  producerId            -1: none
  51    2  producerEpoch         -1: none
  53    4  baseSequence          -1: none
  57    4  recordsCount          0 in a batch that compaction emptied
  61       records               one compressed stream, if there is a codec
===== ==== ==================== ==================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from seglog.core.errors import CorruptBatchError
from seglog.core.types import MAX_INT32, Buffer, TimestampType

LOG_OVERHEAD: Final = 12
"""Bytes of offset and size, which begin every batch and every message of any format."""
BATCH_OVERHEAD: Final = 61
LENGTH_AT: Final = 8
LEADER_EPOCH_AT: Final = 12
MAGIC_POSITION: Final = 16
CRC_AT: Final = 17
ATTRIBUTES_AT: Final = 21
CRC_START: Final = ATTRIBUTES_AT
"""The CRC covers everything from here to the end of the batch."""
LAST_OFFSET_DELTA_AT: Final = 23
BASE_TIMESTAMP_AT: Final = 27
MAX_TIMESTAMP_AT: Final = 35
PRODUCER_ID_AT: Final = 43
PRODUCER_EPOCH_AT: Final = 51
BASE_SEQUENCE_AT: Final = 53
RECORDS_COUNT_AT: Final = 57
MIN_ENTRY: Final = 26
"""Size of the smallest entry of any format: a message of version 0 with null key and null value."""

CODEC_MASK: Final = 0x07
TIMESTAMP_TYPE_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40

HEADER: Final = Struct(">qiibIhiqqqhii")
"""All fields up to the records."""
ENTRY_PREFIX: Final = Struct(">qiib")
"""Base offset, length, leader epoch and magic: the same place in all formats but for the epoch, a CRC in 0 and 1."""
BATCH_PREFIX: Final = Struct(">qiibIhi")
"""Up to lastOffsetDelta: all that a walk over batches needs."""
_INT32: Final = Struct(">i")
_CRC: Final = Struct(">I")
_ATTRIBUTES: Final = Struct(">h")
_INT64: Final = Struct(">q")
assert HEADER.size == BATCH_OVERHEAD


class BatchHeader(NamedTuple):
    """The 61 bytes before a batch's records, in their order. Offsets and timestamps as in `seglog.core.types`."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return self.length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self) -> TimestampType:
        if self.magic == 0:
            return TimestampType.NONE
        return TimestampType.LOG_APPEND_TIME if self.attributes & TIMESTAMP_TYPE_BIT else TimestampType.CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def delete_horizon_ms(self) -> int | None:
        """When tombstones of this batch may go; then records count their timestamps from here (KIP-534)."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else None

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record, -1 without a producer; wraps from 2^31-1 to 0."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & MAX_INT32


class Entry(NamedTuple):
    """Where one batch or legacy message lies, known from its first 17 bytes.

    For magic 2 ``offset`` is the base offset, for 0 and 1 the last one.
    """

    position: int
    size: int
    offset: int
    magic: int


_new: Final = tuple.__new__
"""Makes a named tuple in two thirds of the time of ``_make``: every append and every batch read needs one."""


def read_header(data: Buffer, position: int = 0) -> BatchHeader:
    """The header at ``position``, unchecked; `CorruptBatchError` if fewer than 61 bytes are left.

    Nothing in it is checked: see `check_header`.
    """
    if position < 0 or len(data) - position < BATCH_OVERHEAD:
        raise CorruptBatchError(
            f"a batch header needs {BATCH_OVERHEAD} bytes, {max(len(data) - position, 0)} are left", position=position
        )
    return _new(BatchHeader, HEADER.unpack_from(data, position))


def check_header(header: BatchHeader, position: int = 0) -> None:
    """Raise `CorruptBatchError` for a header of magic 2 that Kafka never writes."""
    reason = None
    if header.magic != 2:
        reason = f"magic is {header.magic}, not 2"
    elif header.length < BATCH_OVERHEAD - LOG_OVERHEAD:
        reason = f"batch length {header.length} is under the {BATCH_OVERHEAD - LOG_OVERHEAD} bytes of a header"
    elif header.base_offset < 0:
        reason = f"base offset {header.base_offset} is negative"
    elif header.last_offset_delta < 0:
        reason = f"last offset delta {header.last_offset_delta} is negative"
    elif header.records_count < 0:
        reason = f"record count {header.records_count} is negative"
    if reason is not None:
        raise CorruptBatchError(reason, position=position, offset=header.base_offset)


def compute_crc(data: Buffer, position: int, size: int) -> int:
    """CRC-32C of the batch at ``position``, over the bytes that its ``crc`` field covers."""
    return int(crc32c(memoryview(data)[position + CRC_START : position + size]))


def check_crc(data: Buffer, header: BatchHeader, position: int = 0) -> None:
    """Raise `CorruptBatchError` if bytes of the batch are missing or its CRC is wrong."""
    size = header.length + LOG_OVERHEAD
    if len(data) - position < size:
        raise CorruptBatchError(
            f"the batch claims {size} bytes, but only {len(data) - position} are left",
            position=position,
            offset=header.base_offset,
        )
    computed = compute_crc(data, position, size)
    if computed != header.crc:
        raise CorruptBatchError(
            f"stored CRC {header.crc} is not the computed {computed}", position=position, offset=header.base_offset
        )


def entries(
    data: Buffer, start: int = 0, end: int | None = None, *, reach: int | None = None, lax: bool = False
) -> Iterator[Entry]:
    """Walk the batches and messages of any format in ``data[start:end]`` by their sizes.

    The walk stops before a last entry that is not whole: a torn tail, or the end of a fetched slice. It raises
    `CorruptBatchError` if a magic or size is impossible. It does not check CRCs.

    ``reach``: where the file that ``data`` was read from ends, counted from ``data[0]``. An entry may then extend
    beyond ``data``; the first 17 bytes of it are there. ``lax``: accept any magic and sizes from 14 on, as Kafka's
    reader of files does (``FileLogInputStream``).
    """
    limit = len(data) if end is None else end
    if reach is None:
        reach = limit
    position, least, unpack = start, MAGIC_POSITION + lax, ENTRY_PREFIX.unpack_from
    while limit - position > least:
        offset, length, _, magic = unpack(data, position)
        following = position + length + LOG_OVERHEAD
        if magic != 2 or length < BATCH_OVERHEAD - LOG_OVERHEAD or lax:
            smallest = (BATCH_OVERHEAD if magic == 2 and not lax else MIN_ENTRY) - LOG_OVERHEAD
            if not (0 <= magic <= 2 or lax):
                raise CorruptBatchError(f"unknown magic {magic}", position=position, offset=offset)
            if length < smallest:
                reason = f"size {length} is under the smallest possible, {smallest}"
                raise CorruptBatchError(reason, position=position, offset=offset)
        if following > reach:
            return
        yield _new(Entry, (position, following - position, offset, magic))
        position = following


def last_offset_of(data: Buffer, entry: Entry) -> int:
    """The last offset of an entry, of which the first 27 bytes are in ``data``."""
    if entry.magic < 2:
        return entry.offset
    return entry.offset + int(_INT32.unpack_from(data, entry.position + LAST_OFFSET_DELTA_AT)[0])


def patch_offset_and_epoch(data: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int) -> None:
    """Set the base offset and the leader epoch of the batch at ``position``: 12 bytes, which the CRC does not cover."""
    _INT64.pack_into(data, position, base_offset)
    _INT32.pack_into(data, position + LEADER_EPOCH_AT, leader_epoch)


def patch_log_append_time(data: bytearray | memoryview, position: int, header: BatchHeader, now_ms: int) -> None:
    """Set the timestamp type to LogAppendTime and the largest timestamp to ``now_ms``; update the CRC."""
    _ATTRIBUTES.pack_into(data, position + ATTRIBUTES_AT, header.attributes | TIMESTAMP_TYPE_BIT)
    _INT64.pack_into(data, position + MAX_TIMESTAMP_AT, now_ms)
    _CRC.pack_into(data, position + CRC_AT, compute_crc(data, position, header.length + LOG_OVERHEAD))


def patch_max_timestamp(data: bytearray | memoryview, position: int, header: BatchHeader, max_timestamp: int) -> None:
    """Set the largest timestamp, which a producer may leave wrong, and update the CRC."""
    _INT64.pack_into(data, position + MAX_TIMESTAMP_AT, max_timestamp)
    _CRC.pack_into(data, position + CRC_AT, compute_crc(data, position, header.length + LOG_OVERHEAD))


def build_batch(header: BatchHeader, records: Buffer) -> bytearray:
    """A batch of ``header`` and its (compressed) records. ``length`` and ``crc`` are computed."""
    batch = bytearray(BATCH_OVERHEAD + len(records))
    batch[BATCH_OVERHEAD:] = records
    HEADER.pack_into(batch, 0, *header._replace(length=len(batch) - LOG_OVERHEAD, magic=2, crc=0))
    _CRC.pack_into(batch, 17, int(crc32c(memoryview(batch)[CRC_START:])))
    return batch
