"""`seglog dump --records`: one JSON object a record, for programs. Here records are checked, unlike in the text form.

Fields: topic, partition, offset, timestamp, timestampType (0 create, 1 append, -1 none), key, value (base64 or null),
headers ([[key, base64 or null], ...]), isControl, isTransactional, producerId, producerEpoch, sequence, leaderEpoch.
"""

from __future__ import annotations

import os.path
from base64 import b64encode
from collections.abc import Sequence
from json import dumps

from seglog.cli.offline.files import expand_files, open_file, partition_of
from seglog.cli.output import DAMAGE, FINE, Out, progress, warn
from seglog.core.errors import CorruptError, SeglogError
from seglog.core.fs import Fs
from seglog.records import view
from seglog.records.batch import BatchHeader
from seglog.records.decoding import Record
from seglog.storage.formats.paths import LOG
from seglog.storage.log.reads import AbortedFilter
from seglog.storage.offline.inspect import Chunk, read_chunks
from seglog.storage.offline.isolation import Committed, committed


def dump_records(fs: Fs, named: list[str], out: Out, *, read_committed: bool) -> int:
    """Print the records of all logs named; a damaged batch is told on stderr, passed over, and makes the code 1.

    With ``read_committed``, aborted transactions and what follows the last stable offset are left out.
    """
    run = _RecordDump(fs, out, read_committed=read_committed)
    for path in expand_files(fs, named):
        if path.endswith(LOG):
            run.log(path)
    return DAMAGE if run.damage else FINE


class _RecordDump:
    def __init__(self, fs: Fs, out: Out, *, read_committed: bool) -> None:
        self._fs = fs
        self._out = out
        self._read_committed = read_committed
        self._known: dict[str, Committed] = {}
        self.damage = 0

    def log(self, path: str) -> None:
        directory = os.path.dirname(os.path.abspath(path))
        partition = partition_of(directory)
        topic, number = partition.topic_partition if partition else (None, None)
        prefix = f'{{"topic":{dumps(topic)},"partition":{dumps(number)},'
        bounds = self._bounds(directory)
        aborted = AbortedFilter(bounds.aborted)
        file = open_file(self._fs, path)
        size, position = file.size(), 0
        try:
            with progress(os.path.basename(path), size) as advance:
                for chunk in read_chunks(file, 0, size):
                    if not self._chunk(chunk, path, prefix, aborted, bounds.last_stable_offset):
                        return
                    position = chunk.position + chunk.end
                    advance(chunk.end)
            if position < size:
                raise CorruptError(f"{size - position} bytes are no whole batch", position=position, file=path)
        except CorruptError as error:
            self._tell(error)

    def _bounds(self, directory: str) -> Committed:
        if not self._read_committed:
            return Committed((), None)
        if directory not in self._known:
            self._known[directory] = committed(self._fs, directory)
        return self._known[directory]

    def _chunk(self, chunk: Chunk, path: str, prefix: str, aborted: AbortedFilter, end: int | None) -> bool:
        """Print a chunk's records; whether to go on: not behind ``end``, the last stable offset."""
        data = chunk.data
        for entry in chunk.entries():
            try:
                view.check(data, entry)
                header = view.describe(data, entry, deep=False)
                if end is not None and header.base_offset >= end:
                    return False
                if not aborted.skips(header):
                    self._print(header, view.decode(data, entry), prefix)
            except CorruptError as error:
                self._tell(error.at(file=path, base=chunk.position))
            except SeglogError as error:
                self._tell(
                    CorruptError(str(error), position=chunk.position + entry.position, file=path, offset=entry.offset)
                )
        return True

    def _print(self, header: BatchHeader, records: Sequence[Record], prefix: str) -> None:
        time_type = int(header.timestamp_type)
        suffix = (
            f'"isControl":{_boolean(header.is_control)},"isTransactional":{_boolean(header.is_transactional)},'
            f'"producerId":{header.producer_id},"producerEpoch":{header.producer_epoch},"sequence":'
        )
        end = f',"leaderEpoch":{header.leader_epoch}}}\n'
        write = self._out.write
        for offset, timestamp, key, value, headers, sequence in records:
            shown = ",".join(f"[{dumps(name, ensure_ascii=False)},{_base64(one)}]" for name, one in headers)
            write(
                f'{prefix}"offset":{offset},"timestamp":{timestamp},"timestampType":{time_type},"key":{_base64(key)},'
                f'"value":{_base64(value)},"headers":[{shown}],{suffix}{sequence}{end}'
            )

    def _tell(self, error: CorruptError) -> None:
        self._out.flush()
        warn(f"seglog: {error}")
        self.damage += 1


def _base64(data: bytes | None) -> str:
    return "null" if data is None else f'"{b64encode(data).decode()}"'


def _boolean(value: bool) -> str:
    return "true" if value else "false"
