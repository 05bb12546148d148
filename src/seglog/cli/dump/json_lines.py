"""`seglog dump --json`: the files as JSON, an object a line for each batch, index entry, transaction or producer.

Fields are named as in the text form. The zeros of a pre-allocated index are no entries here.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterator

from seglog.cli.dump.log_text import base_offset
from seglog.cli.offline.files import expand_files, open_file, read_file
from seglog.cli.output import DAMAGE, FINE, Out, fail, progress, warn
from seglog.core.errors import CorruptBatchError, CorruptError
from seglog.core.fs import Fs
from seglog.records import view
from seglog.records.batch import Entry
from seglog.records.compression import Codec
from seglog.storage.formats.paths import INDEX, LOG, SNAPSHOT, TIME_INDEX, TXN_INDEX
from seglog.storage.log.index import OFFSET_ENTRY, TIME_ENTRY, count_offset_entries, count_time_entries
from seglog.storage.log.producers import decode_snapshot
from seglog.storage.log.transaction_index import decode_aborted
from seglog.storage.offline.inspect import Chunk, read_chunks

_Fields = dict[str, object]


def dump_json(fs: Fs, named: list[str], out: Out, *, max_bytes: int) -> int:
    """Print all files named; what cannot be read is told on stderr, and makes the code 1."""
    damage = 0
    for path in expand_files(fs, named):
        try:
            for fields in _entries(fs, path, max_bytes):
                damage += fields.get("isValid") is False
                out.json({"file": path, **fields})
        except ValueError as error:
            return fail(error)
        except CorruptError as error:
            out.flush()
            warn(f"seglog: {error.at(file=path)}")
            damage += 1
    return DAMAGE if damage else FINE


def _entries(fs: Fs, path: str, max_bytes: int) -> Iterator[_Fields]:
    name = os.path.basename(path)
    if name.endswith((LOG, ".checkpoint")):
        yield from _batches(fs, path, max_bytes)
        return
    data = read_file(fs, path)
    if name.endswith(SNAPSHOT):
        yield from _producers(data, path)
        return
    base = base_offset(name)
    if name.endswith(TXN_INDEX):
        for txn in decode_aborted(data, path, base_offset=base):
            yield {
                "producerId": txn.producer_id,
                "firstOffset": txn.first_offset,
                "lastOffset": txn.last_offset,
                "lastStableOffset": txn.last_stable_offset,
            }
    elif name.endswith(TIME_INDEX):
        for slot in range(count_time_entries(data)):
            timestamp, relative = TIME_ENTRY.unpack_from(data, slot * TIME_ENTRY.size)
            yield {"timestamp": timestamp, "offset": base + relative}
    elif name.endswith(INDEX):
        for slot in range(count_offset_entries(data)):
            relative, position = OFFSET_ENTRY.unpack_from(data, slot * OFFSET_ENTRY.size)
            yield {"offset": base + relative, "position": position}
    else:
        warn(f"Ignoring unknown file {path}")


def _batches(fs: Fs, path: str, max_bytes: int) -> Iterator[_Fields]:
    file = open_file(fs, path)
    size, position = min(file.size(), max_bytes), 0
    with progress(os.path.basename(path), size) as advance:
        for chunk in read_chunks(file, 0, size):
            yield from _chunk(chunk)
            position = chunk.position + chunk.end
            advance(chunk.end)
    if position < size == file.size():
        raise CorruptBatchError(f"{size - position} bytes at the end are no whole batch", position=position)


def _chunk(chunk: Chunk) -> Iterator[_Fields]:
    data = chunk.data
    for entry in chunk.entries():
        magic, position = entry.magic, chunk.position + entry.position
        try:
            header = view.describe(data, entry, deep=False)
            codec = Codec(header.codec).name.lower()
        except ValueError as error:
            raise CorruptBatchError(str(error), position=position, offset=entry.offset) from error
        except CorruptError as error:
            raise error.at(base=chunk.position) from None
        time_type = int(header.timestamp_type)
        yield {
            "baseOffset": header.base_offset if magic == 2 else None,
            "lastOffset": header.last_offset,
            "count": header.records_count if magic == 2 else None,
            "baseSequence": header.base_sequence,
            "lastSequence": header.last_sequence,
            "producerId": header.producer_id,
            "producerEpoch": header.producer_epoch,
            "partitionLeaderEpoch": header.leader_epoch,
            "isTransactional": header.is_transactional,
            "isControl": header.is_control,
            "deleteHorizonMs": header.delete_horizon_ms,
            "position": position,
            "timestampType": time_type,
            "maxTimestamp": header.max_timestamp,
            "size": entry.size,
            "magic": magic,
            "codec": codec,
            "crc": header.crc,
            "isValid": _is_valid(data, entry),
        }


def _is_valid(data: bytes, entry: Entry) -> bool:
    try:
        view.check(data, entry)
    except CorruptError:
        return False
    return True


def _producers(data: bytes, path: str) -> Iterator[_Fields]:
    for producer_id, entry in decode_snapshot(data, path).entries.items():
        batch = entry.batches[-1] if entry.batches else None
        yield {
            "producerId": producer_id,
            "producerEpoch": entry.epoch,
            "coordinatorEpoch": entry.coordinator_epoch,
            "currentTxnFirstOffset": entry.current_txn_first_offset,
            "lastTimestamp": entry.last_timestamp,
            "firstSequence": batch.first_sequence if batch else None,
            "lastSequence": batch.last_sequence if batch else None,
            "lastOffset": batch.last_offset if batch else None,
            "offsetDelta": batch.offset_delta if batch else None,
            "timestamp": batch.timestamp if batch else None,
        }
