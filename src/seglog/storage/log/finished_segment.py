"""A finished log file of one transactional producer, as a leader takes it over whole (`Log.append_segment`).

A sink stages segments (`seglog.storage.adopt.staging`). Before a leader takes one over, `stamp` makes its batches those
of a producer. That changes bytes under the CRC, so whoever stamps checks the old CRC first. A stamped batch has the
base offset -1 and is not part of any log: after a power cut, recovery cuts a log off at a batch that has no place yet.

`read_finished` then reads the headers, which needs no lock, and `FinishedSegment.place` gives each batch its offset and
leader epoch: 12 bytes a batch, which no CRC covers.
"""

from __future__ import annotations

from contextlib import closing
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from seglog.core.errors import AdoptError, CorruptBatchError, InvalidRecordError
from seglog.core.fs import Fs
from seglog.core.types import MAX_INT32, ProducerIdAndEpoch
from seglog.records.batch import (
    ATTRIBUTES_AT,
    CONTROL_BIT,
    CRC_AT,
    CRC_START,
    PRODUCER_ID_AT,
    RECORDS_COUNT_AT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    check_crc,
    check_header,
    read_header,
)
from seglog.storage.formats.batch_walk import HEADERS, walk
from seglog.storage.log.producer_entry import BATCHES_KEPT

_PLACE: Final = Struct(">qii")
"""Base offset, length and leader epoch."""
_ATTRIBUTES: Final = Struct(">h")
_PRODUCER: Final = Struct(">qhi")
"""Producer id, producer epoch and base sequence."""
_CRC: Final = Struct(">I")
_NOWHERE: Final = -1
"""The base offset, and the leader epoch, of a batch without a place."""


class FinishedSegment(NamedTuple):
    """``batches`` has each batch's position, length field and first record. ``first`` and ``last`` are the headers of
    the first batch and of up to five last ones; their base offsets count from 0, as those of ``batches``."""

    path: str
    size: int
    records: int
    batches: tuple[tuple[int, int, int], ...]
    first: BatchHeader
    last: tuple[BatchHeader, ...]

    @property
    def producer(self) -> ProducerIdAndEpoch:
        return ProducerIdAndEpoch(self.first.producer_id, self.first.producer_epoch)

    @property
    def last_sequence(self) -> int:
        return self.last[-1].last_sequence

    @property
    def max_timestamp(self) -> int:
        """Of the last batches."""
        return max(header.max_timestamp for header in self.last)

    def place(self, fs: Fs, base_offset: int, leader_epoch: int) -> None:
        """Write the batches' offsets and epochs, in the page cache. It can be repeated with other ones."""
        with closing(fs.open(self.path)) as file:
            for position, length, record in self.batches:
                file.pwrite(_PLACE.pack(base_offset + record, length, leader_epoch), position)


def stamp(fs: Fs, path: str, producer: ProducerIdAndEpoch, base_sequence: int) -> int:
    """Make the batches of a staged file those of a transactional producer, and fsync it; returns the next sequence.

    `CorruptBatchError` if a batch is damaged: it would not be noticed later.
    """
    sequence = base_sequence
    with closing(fs.open(path)) as file:
        end = 0
        for entry, position, data in walk(file):
            header = read_header(data, entry.position)
            check_header(header._replace(base_offset=0), position)
            try:
                check_crc(data, header, entry.position)
            except CorruptBatchError as error:
                raise error.at(file=path, base=position - entry.position) from error
            last = sequence + header.last_offset_delta
            if last > MAX_INT32:
                raise AdoptError(f"{path}: more than {MAX_INT32} records for a partition in one transaction")
            head = bytearray(data[entry.position : entry.position + RECORDS_COUNT_AT])
            _PLACE.pack_into(head, 0, _NOWHERE, header.length, _NOWHERE)
            _ATTRIBUTES.pack_into(head, ATTRIBUTES_AT, header.attributes | TRANSACTIONAL_BIT)
            _PRODUCER.pack_into(head, PRODUCER_ID_AT, *producer, sequence)
            crc = crc32c(head[CRC_START:])
            crc = crc32c(data[entry.position + RECORDS_COUNT_AT : entry.position + entry.size], crc)
            _CRC.pack_into(head, CRC_AT, crc)
            file.pwrite(head, position)
            sequence, end = last + 1, position + entry.size
        if end != file.size():
            raise CorruptBatchError("the staged file ends in a batch", position=end, file=path)
        file.fsync()
    return sequence


def read_finished(fs: Fs, path: str) -> FinishedSegment:
    """The headers of a stamped file, checked but for the CRCs. For a thread: it takes some microseconds a batch.

    `AdoptError` if there is no such file, `CorruptBatchError` or `InvalidRecordError` if it is not what `stamp` leaves.
    """
    try:
        file = fs.open(path, write=False)
    except FileNotFoundError as error:
        raise AdoptError(f"{path} does not exist") from error
    batches: list[tuple[int, int, int]] = []
    first: BatchHeader | None = None
    last: list[BatchHeader] = []
    records = end = 0
    with closing(file):
        size = file.size()
        for entry, position, data in walk(file, window=HEADERS, whole=False):
            header = read_header(data, entry.position)._replace(base_offset=records)
            check_header(header, position)
            _check_continues(header, last[-1] if last else None, path)
            batches.append((position, header.length, records))
            first = first or header
            last = [*last[1 - BATCHES_KEPT :], header]
            records += header.last_offset_delta + 1
            end = position + header.size
    if first is None or end != size:
        raise CorruptBatchError("the staged file ends in a batch, or is empty", position=end, file=path)
    return FinishedSegment(path, size, records, tuple(batches), first, tuple(last))


def _check_continues(header: BatchHeader, before: BatchHeader | None, path: str) -> None:
    """`InvalidRecordError` unless it is a batch of a transactional producer, and continues the one before it."""
    is_data = header.attributes & TRANSACTIONAL_BIT and not header.attributes & CONTROL_BIT
    if not is_data or header.producer_id < 0 or header.records_count != header.last_offset_delta + 1:
        raise InvalidRecordError(f"{path}: a batch that is not of a transaction: {header}")
    same = before is None or (before.producer_id, before.producer_epoch, before.last_sequence + 1) == (
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
    )
    if not same:
        raise InvalidRecordError(f"{path}: a batch that does not continue its producer's: {header} after {before}")
