"""The task of a run: it reads neighbouring ranges of the log, and writes their records as files.

Threads run it in the process that commits, or other processes do, here or on other machines.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import pyarrow as pa

from seglog.core.errors import InvalidConfigError
from seglog.core.fs import FileStore
from seglog.records.columns import SCHEMA
from seglog.sources.record_source import RecordSource
from seglog.table.files.day_files import write_days
from seglog.table.files.record_decoding import RecordDecoder, RecordDecoding
from seglog.table.files.record_files import FileForm, WrittenFile, write_records

T = TypeVar("T")


class Executor(Protocol):
    """Runs tasks at once, such as each executor of ``concurrent.futures``."""

    def map(self, call: Callable[[Any], T], arguments: Iterable[Any], /) -> Iterable[T]:
        """The results of ``call``, in the order of ``arguments``. Raises the first error of a task."""


class TaskResult(NamedTuple):
    """The files of a task, and how many of their keys, values and timestamps are null because they are not valid."""

    files: Sequence[WrittenFile]
    undecodable: int
    null_timestamps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTask:
    """Writes ranges of ``source`` to ``directory``. It has plain values only, so it can be sent to other processes."""

    source: RecordSource
    decoding: RecordDecoding
    form: FileForm
    files: FileStore
    directory: str

    def __call__(self, ranges: Sequence[Any]) -> TaskResult:
        """The files are on the disk afterwards. Their directory's entries are not."""
        if "://" not in self.directory and not self.files.exists(self.directory):
            raise InvalidConfigError(
                f"{self.directory} does not exist on host {socket.gethostname()}: mount the warehouse on every worker "
                "under the same path"
            )
        decoder = self.decoding.decoder()
        batches = self._read(ranges, decoder)
        if self.form.by_day:
            written = write_days(self.files, self.directory, batches, self.form)
        else:
            one = write_records(self.files, self.directory, batches, self.form)
            written = [] if one is None else [one]
        return TaskResult(written, decoder.undecodable, decoder.null_timestamps)

    def _read(self, ranges: Sequence[Any], decoder: RecordDecoder) -> Iterator[pa.RecordBatch]:
        for one in ranges:
            yield from decoder.decode(self.source.read((one,), SCHEMA))
