"""`seglog dump --json` and `--records`: the files as JSON, one object per line, for programs.

``--json``: an object for each batch, index entry, transaction or producer, with the fields of the text form. The zeros
of a pre-allocated index are not entries here.

``--records``: an object for each record: topic, partition, offset, timestamp, timestampType (0 create, 1 append, -1
none), key, value, headers ([[key, value], ...]), isControl, isTransactional, producerId, producerEpoch, sequence,
leaderEpoch. Keys and values are texts, ``{"base64": …}`` for bytes that are not UTF-8, or null.
Records are checked here, unlike in the text form.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterator, Sequence
from json import dumps

from seglog.cli.dump.log_text import base_offset
from seglog.cli.offline.files import expand_files, open_file, partition_of, read_file
from seglog.cli.output import DAMAGE, FINE, Out, fail, json_bytes, warn
from seglog.core.errors import CorruptBatchError, CorruptError, SeglogError
from seglog.core.fs import Fs
from seglog.core.progress import progress
from seglog.core.types import MAX_INT32
from seglog.records import any_magic
from seglog.records.batch import BatchHeader, Entry
from seglog.records.compression import Codec
from seglog.records.java_text import boolean
from seglog.records.record import Record
from seglog.storage.formats.paths import INDEX, LOG, SNAPSHOT, TIME_INDEX, TXN_INDEX
from seglog.storage.log.index import OFFSET_ENTRY, TIME_ENTRY, count_offset_entries, count_time_entries
from seglog.storage.log.producers import decode_snapshot
from seglog.storage.log.reads import AbortedFilter
from seglog.storage.log.transaction_index import decode_aborted
from seglog.storage.offline.batch_reading import Chunk, read_chunks
from seglog.storage.offline.transaction_state import ReadCommittedState, read_transactions

_Fields = dict[str, object]


def dump_json(fs: Fs, named: list[str], out: Out, *, max_bytes: int) -> int:
    """Print all files named. Report an unreadable file on stderr, go on with the next one, and return 1."""
    damage = 0
    for path in expand_files(fs, named):
        try:
            for fields in _entries(fs, path, max_bytes):
                damage += fields.get("isValid") is False
                out.json({"file": path, **fields})
        except ValueError as error:
            return fail(error)
        except CorruptError as error:
            _report(out, error.at(file=path))
            damage += 1
    return DAMAGE if damage else FINE


def dump_records(fs: Fs, named: list[str], out: Out, *, read_committed: bool) -> int:
    """Print the records of all logs named. Report a damaged batch on stderr, skip it, and return 1.

    With ``read_committed``, leave out aborted transactions and everything from the last stable offset on.
    """
    run = _RecordDump(fs, out, read_committed=read_committed)
    for path in expand_files(fs, named):
        if path.endswith(LOG):
            run.log(path)
    return DAMAGE if run.damage else FINE


def _report(out: Out, error: CorruptError) -> None:
    out.flush()
    warn(f"seglog: {error}")


def _chunks(fs: Fs, path: str, max_bytes: int = MAX_INT32) -> Iterator[Chunk]:
    """The chunks of a log. Raises `CorruptBatchError` if bytes that are not a whole batch follow the last one."""
    file = open_file(fs, path)
    size, position = min(file.size(), max_bytes), 0
    with progress(os.path.basename(path), size) as advance:
        for chunk in read_chunks(file, 0, size):
            yield chunk
            position = chunk.position + chunk.end
            advance(chunk.end)
    if position < size == file.size():
        raise CorruptBatchError(f"{size - position} bytes at the end are not a whole batch", position=position)


def _entries(fs: Fs, path: str, max_bytes: int) -> Iterator[_Fields]:
    name = os.path.basename(path)
    if name.endswith((LOG, ".checkpoint")):
        for chunk in _chunks(fs, path, max_bytes):
            yield from batch_documents(chunk)
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


def batch_documents(chunk: Chunk) -> Iterator[_Fields]:
    """An object for each batch or message of a chunk."""
    data = chunk.data
    for entry in chunk.entries:
        magic, position = entry.magic, chunk.position + entry.position
        try:
            header = any_magic.describe(data, entry, deep=False)
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
        any_magic.check(data, entry)
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


class _RecordDump:
    """Prints the records of one log after the other and counts the damage."""

    def __init__(self, fs: Fs, out: Out, *, read_committed: bool) -> None:
        self._fs = fs
        self._out = out
        self._read_committed = read_committed
        self._known: dict[str, ReadCommittedState] = {}
        self.damage = 0

    def log(self, path: str) -> None:
        directory = os.path.dirname(os.path.abspath(path))
        partition = partition_of(directory)
        topic, number = partition.topic_partition if partition else (None, None)
        prefix = f'{{"topic":{dumps(topic)},"partition":{dumps(number)},'
        bounds = self._bounds(directory)
        aborted = AbortedFilter(bounds.aborted)
        try:
            for chunk in _chunks(self._fs, path):
                if not self._chunk(chunk, path, prefix, aborted, bounds.last_stable_offset):
                    return
        except CorruptError as error:
            self._report(error.at(file=path))

    def _bounds(self, directory: str) -> ReadCommittedState:
        if not self._read_committed:
            return ReadCommittedState((), None)
        if directory not in self._known:
            self._known[directory] = read_transactions(self._fs, directory)
        return self._known[directory]

    def _chunk(self, chunk: Chunk, path: str, prefix: str, aborted: AbortedFilter, end: int | None) -> bool:
        """Print a chunk's records. Returns False at ``end``, the last stable offset."""
        data = chunk.data
        for entry in chunk.entries:
            try:
                any_magic.check(data, entry)
                header = any_magic.describe(data, entry, deep=False)
                if end is not None and header.base_offset >= end:
                    return False
                if not aborted.skips(header):
                    self._print(header, any_magic.decode(data, entry), prefix)
            except CorruptError as error:
                self._report(error.at(file=path, base=chunk.position))
            except SeglogError as error:
                self._report(
                    CorruptError(str(error), position=chunk.position + entry.position, file=path, offset=entry.offset)
                )
        return True

    def _print(self, header: BatchHeader, records: Sequence[Record], prefix: str) -> None:
        time_type = int(header.timestamp_type)
        suffix = (
            f'"isControl":{boolean(header.is_control)},"isTransactional":{boolean(header.is_transactional)},'
            f'"producerId":{header.producer_id},"producerEpoch":{header.producer_epoch},"sequence":'
        )
        end = f',"leaderEpoch":{header.leader_epoch}}}\n'
        write = self._out.write
        for offset, timestamp, key, value, headers, sequence in records:
            shown = ",".join(f"[{dumps(name, ensure_ascii=False)},{_json(one)}]" for name, one in headers)
            write(
                f'{prefix}"offset":{offset},"timestamp":{timestamp},"timestampType":{time_type},"key":{_json(key)},'
                f'"value":{_json(value)},"headers":[{shown}],{suffix}{sequence}{end}'
            )

    def _report(self, error: CorruptError) -> None:
        _report(self._out, error)
        self.damage += 1


def _json(data: bytes | None) -> str:
    return dumps(json_bytes(data), ensure_ascii=False)
