"""The text of a ``.snapshot`` of producers as Kafka 4.3's DumpLogSegments prints it.

Read by Kafka's rules (``ProducerStateManager.readSnapshot``): bytes after the last entry are ignored if the CRC covers
them, while `seglog.storage.log.producers` refuses them.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from crc32c import crc32c

from seglog.cli.offline.files import read_file
from seglog.cli.output import Out
from seglog.core.errors import CorruptSnapshotError
from seglog.core.fs import Fs
from seglog.core.types import MAX_INT32
from seglog.records.java_text import int32, optional_long

_HEADER: Final = Struct(">hIi")
_ENTRY: Final = Struct(">qhiqiqiq")
_CRC_START: Final = 6
assert (_HEADER.size, _ENTRY.size) == (10, 46)


def dump_snapshot(fs: Fs, path: str, out: Out) -> None:
    """Print a line for each producer, in file order. Raises `CorruptSnapshotError` before the first line."""
    for fields in _entries(read_file(fs, path), path):
        producer_id, epoch, last_sequence, last_offset, delta, timestamp, coordinator_epoch, txn = fields
        text = (
            f"producerId: {producer_id} producerEpoch: {epoch} coordinatorEpoch: {coordinator_epoch} "
            f"currentTxnFirstOffset: {optional_long(txn if txn >= 0 else None)} lastTimestamp: {timestamp}"
        )
        if last_offset >= 0:
            text += (
                f" firstSequence: {_decrement_sequence(last_sequence, delta)} lastSequence: {last_sequence} "
                f"lastOffset: {last_offset} offsetDelta: {delta} timestamp: {timestamp}"
            )
        out.line(text)


def _entries(data: bytes, path: str) -> list[tuple[int, ...]]:
    if len(data) < _HEADER.size:
        raise CorruptSnapshotError(f"{len(data)} bytes are too few for a snapshot", file=path)
    version, crc, count = _HEADER.unpack_from(data)
    if version != 1:
        raise CorruptSnapshotError(f"unknown version {version}", position=0, file=path)
    if not 0 <= count <= (len(data) - _HEADER.size) // _ENTRY.size:
        raise CorruptSnapshotError(f"{count} entries in {len(data)} bytes", position=_CRC_START, file=path)
    computed = crc32c(memoryview(data)[_CRC_START:])
    if crc != computed:
        raise CorruptSnapshotError(f"the stored CRC {crc} differs from the computed {computed}", position=2, file=path)
    return [_ENTRY.unpack_from(data, _HEADER.size + slot * _ENTRY.size) for slot in range(count)]


def _decrement_sequence(sequence: int, decrement: int) -> int:
    """``DefaultRecordBatch.decrementSequence``: wraps from 0 to 2^31-1."""
    if sequence < decrement:
        return int32(MAX_INT32 - (decrement - sequence) + 1)
    return int32(sequence - decrement)
