"""What `seglog dump` does with its options: file after file, as text."""

from __future__ import annotations

import os.path
from collections.abc import Iterator
from typing import Final, NamedTuple

from seglog.cli.dump.index_text import Findings, IndexOptions, dump_offset_index, dump_time_index, dump_txn_index
from seglog.cli.dump.log_text import ChunkText, LogOptions, log_title, render_plain
from seglog.cli.dump.snapshot_text import dump_snapshot
from seglog.cli.offline.files import CHECKPOINT, expand_files, java_path, open_file
from seglog.cli.output import DAMAGE, FINE, Out, fail, progress, warn
from seglog.core.errors import CorruptError, CorruptSnapshotError, MissingExtraError
from seglog.core.extras import require
from seglog.core.fs import File, Fs
from seglog.core.types import MAX_INT32
from seglog.records.batch import BATCH_OVERHEAD, read_header
from seglog.storage.formats.paths import INDEX, LOG, SNAPSHOT, TIME_INDEX, TXN_INDEX
from seglog.storage.offline.inspect import Chunk, read_chunks

_SAMPLE_BYTES: Final = 256 << 10
_MANY_LINES: Final = 400_000
"""Lines of text from which on the compiled loops save more time than their start takes (a second)."""


class DumpOptions(NamedTuple):
    """The options of DumpLogSegments."""

    log: LogOptions = LogOptions()
    indexes: IndexOptions = IndexOptions()
    max_bytes: int = MAX_INT32


def dump_text(fs: Fs, named: list[str], options: DumpOptions, out: Out) -> int:
    """Print files as Kafka's tool does; ends, as it does, at the first that cannot be read to its end."""
    run = _TextDump(fs, options, out)
    try:
        for path in expand_files(fs, named):
            run.file(path)
    except ValueError as error:
        return fail(error)
    except CorruptError as error:
        out.flush()
        warn(f"seglog: {error}")
        run.damage += 1
    run.show_notes()
    return DAMAGE if run.damage else FINE


def _render(file: File, size: int, options: LogOptions) -> Iterator[tuple[Chunk, ChunkText]]:
    """By compiled loops if it is worth their start, and if they are there."""
    if options.decoder is None and _estimate_lines(file, size, options) > _MANY_LINES:
        try:
            require("numba", "fast", purpose="dumping large logs fast")
        except MissingExtraError as error:
            warn(f"seglog: {error}")
        else:
            from seglog.cli.dump.fast_text import render_fast

            return render_fast(file, size, options)
    return render_plain(file, size, options)


def _estimate_lines(file: File, size: int, options: LogOptions) -> int:
    """How many lines the text will have, going by the start of the log."""
    try:
        sample = next(read_chunks(file, 0, size, size=_SAMPLE_BYTES), None)
    except CorruptError:
        return 0
    if sample is None:
        return 0
    lines = len(sample.starts)
    if options.deep:
        headers = (entry for entry in sample.entries() if entry.magic == 2 and entry.size >= BATCH_OVERHEAD)
        lines += sum(read_header(sample.data, entry.position).records_count for entry in headers)
    return lines * size // sample.end


class _TextDump:
    """Files so far: how much damage they have, and what is to be said about them at the end, on stderr."""

    def __init__(self, fs: Fs, options: DumpOptions, out: Out) -> None:
        self._fs = fs
        self._options = options
        self._out = out
        self._index_notes: list[str] = []
        self._gap_notes: list[str] = []
        self.damage = 0

    def file(self, path: str) -> None:
        shown = java_path(path)
        self._out.line(f"Dumping {shown}")
        name = os.path.basename(shown)
        suffix = name[name.rfind(".") :] if "." in name else ""
        options = self._options.indexes
        if suffix in (LOG, CHECKPOINT):
            self._log(path, shown, name)
        elif suffix == INDEX:
            self._note(dump_offset_index(self._fs, path, shown, options, self._out))
        elif suffix == TIME_INDEX:
            self._note(dump_time_index(self._fs, path, shown, options, self._out))
        elif suffix == SNAPSHOT:
            self._snapshot(path)
        elif suffix == TXN_INDEX:
            dump_txn_index(self._fs, path, self._out)
        else:
            warn(f"Ignoring unknown file {shown}")

    def show_notes(self) -> None:
        self._out.flush()
        for line in [*self._index_notes, *self._gap_notes]:
            warn(line)

    def _note(self, findings: Findings) -> None:
        self._index_notes += findings.lines
        self.damage += findings.damage

    def _log(self, path: str, shown: str, name: str) -> None:
        self._out.line(log_title(name))
        file = open_file(self._fs, path)
        size = min(file.size(), self._options.max_bytes)
        position, last = 0, None
        gaps: list[tuple[int, int]] = []
        with progress(name, size) as advance:
            for chunk, text in _render(file, size, self._options.log):
                for part in text.parts:
                    self._out.raw(part)
                if text.first is not None:
                    if last is not None and text.first != last + 1:
                        gaps.append((last, text.first))
                    gaps += text.gaps
                    last = text.last
                self.damage += text.invalid
                position = chunk.position + chunk.end
                advance(chunk.end)
                if text.error is not None:
                    raise text.error
        if position < size and self._options.max_bytes == MAX_INT32:
            self._out.line(f"Found {size - position} invalid bytes at the end of {name}")
            self.damage += 1
        if gaps:
            self._gap_notes.append(f"Non-consecutive offsets in {os.path.abspath(shown)}")
            self._gap_notes += [f"  {before} is followed by {after}" for before, after in gaps]

    def _snapshot(self, path: str) -> None:
        try:
            dump_snapshot(self._fs, path, self._out)
        except CorruptSnapshotError as error:  # Kafka goes on to the next file, and so do we
            self._out.flush()
            warn(str(error))
            self.damage += 1
