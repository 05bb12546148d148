"""The text of large logs, by compiled loops in several threads, in file order. Needs the extra ``fast``."""

from __future__ import annotations

import os
import tempfile
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import numpy as np

from seglog.cli.dump.log_text import ChunkText, render_chunk
from seglog.cli.dump.options import DumpOptions
from seglog.cli.dump.text_kernels import (
    CONTENTS,
    DEEP,
    S_BATCH,
    S_FIRST,
    S_GAPS,
    S_INVALID,
    S_LAST,
    S_LENGTH,
    S_RECORDS,
    SKIP_METADATA,
    STATE_FIELDS,
    Stop,
    render_batches,
    render_records,
)
from seglog.core.errors import CorruptError
from seglog.core.fs import File, OsFs
from seglog.records.batch import BATCH_OVERHEAD, CODEC_MASK, LOG_OVERHEAD
from seglog.records.compression import Codec, decompress
from seglog.records.machine import I64, U8
from seglog.records.record import NewRecord, encode_batch
from seglog.storage.offline.inspect import Chunk, read_chunks

_ROOM_BYTES: Final = 64 << 20
"""Address space for the text of one chunk; only written pages take memory."""
_GAPS: Final = 1 << 17
_MAX_THREADS: Final = 4


def render_fast(file: File, size: int, options: DumpOptions) -> Iterator[tuple[Chunk, ChunkText]]:
    """The chunks of a log and their text, in order, as `seglog.cli.dump.log_text.render_plain` returns them.

    A text is valid until the next one is requested: its memory is reused.
    """
    threads = min(os.cpu_count() or 1, _MAX_THREADS)
    free = [np.empty(_ROOM_BYTES, np.uint8) for _ in range(threads + 1)]
    running: deque[tuple[Chunk, U8, Future[ChunkText]]] = deque()
    damage = None
    with ThreadPoolExecutor(threads) as pool:
        try:
            for chunk in read_chunks(file, 0, size):
                if not free:
                    yield from _finish(running, free)
                out = free.pop()
                running.append((chunk, out, pool.submit(_ChunkRenderer(chunk, file, options, out).render)))
        except CorruptError as error:
            damage = error
        while running:
            yield from _finish(running, free)
    if damage is not None:
        raise damage


def warm_text() -> None:
    """Compile the loops that this module uses; `seglog.storage.precompile.warm` compiles the others."""
    records = [NewRecord(b"value", b"key", 1, (("name", b"value"),))]
    for codec in (Codec.NONE, Codec.LZ4):
        data = bytes(encode_batch(records, codec=codec))
        with tempfile.TemporaryDirectory(prefix="seglog-warm-") as directory:
            path = os.path.join(directory, "warm.log")
            fs = OsFs()
            fs.write(path, data)
            for _ in render_fast(fs.open(path, write=False), len(data), DumpOptions(deep=True, contents=True)):
                pass


def _finish(running: deque[tuple[Chunk, U8, Future[ChunkText]]], free: list[U8]) -> Iterator[tuple[Chunk, ChunkText]]:
    chunk, out, future = running.popleft()
    yield chunk, future.result()
    free.append(out)


class _ChunkRenderer:
    """Renders one chunk by the compiled loops, and by the plain path the batches that they leave to it."""

    def __init__(self, chunk: Chunk, file: File, options: DumpOptions, out: U8) -> None:
        self._chunk = chunk
        self._file = file
        self._options = options
        self._data: U8 = np.frombuffer(chunk.data, np.uint8)
        self._flags = (
            DEEP * options.deep | CONTENTS * options.contents | SKIP_METADATA * (options.deep and options.skip_metadata)
        )
        self._out = out
        self._state: I64 = np.zeros(len(STATE_FIELDS), np.int64)
        self._gaps: I64 = np.empty((_GAPS if options.deep else 0, 2), np.int64)
        self._parts: list[bytes | memoryview] = []
        self._all_gaps: list[tuple[int, int]] = []

    def render(self) -> ChunkText:
        chunk, state = self._chunk, self._state
        position = 0
        error = None
        while error is None:
            position, stop = render_batches(
                self._data, position, chunk.end, chunk.position, self._flags, self._out, state, self._gaps
            )
            if stop == Stop.END:
                break
            following = position + LOG_OVERHEAD + int.from_bytes(chunk.data[position + 8 : position + 12])
            if stop == Stop.FULL and state[S_LENGTH]:
                self._save(int(state[S_LENGTH]))
                continue
            if stop == Stop.COMPRESSED:
                error = self._compressed(position, following)
            else:
                error = self._plain(position, following, counted=False)
            position = following
        self._take_gaps()
        has_records = state[S_RECORDS] > 0
        return ChunkText(
            parts=[*self._parts, self._out.data[: state[S_LENGTH]]],
            first=int(state[S_FIRST]) if has_records else None,
            last=int(state[S_LAST]) if has_records else None,
            gaps=self._all_gaps,
            invalid=int(state[S_INVALID]),
            error=error,
        )

    def _compressed(self, position: int, following: int) -> CorruptError | None:
        """Render the records of a compressed batch; its line is written."""
        state, data = self._state, self._chunk.data
        codec = data[position + 22] & CODEC_MASK
        try:
            area = decompress(codec, memoryview(data)[position + BATCH_OVERHEAD : following])
        except CorruptError:
            state[S_LENGTH] = state[S_BATCH]
            return self._plain(position, following, counted=True)
        records: U8 = np.frombuffer(area, np.uint8)
        stop = render_records(self._data, position, records, self._flags, self._out, state, self._gaps)
        if stop == Stop.FULL:
            self._save(int(state[S_BATCH]))
            stop = render_records(self._data, position, records, self._flags, self._out, state, self._gaps)
        if stop == Stop.END:
            return None
        state[S_LENGTH] = state[S_BATCH]
        return self._plain(position, following, counted=True)

    def _plain(self, position: int, following: int, *, counted: bool) -> CorruptError | None:
        """Render one batch by the plain path. ``counted``: a wrong CRC of it is counted already."""
        state, chunk = self._state, self._chunk
        self._save(int(state[S_LENGTH]))
        text = render_chunk(Chunk(chunk.position, chunk.data, [position], following), self._file, self._options)
        self._parts += text.parts
        if text.first is not None and text.last is not None:
            if state[S_RECORDS] == 0:
                state[S_FIRST] = text.first
            elif text.first != state[S_LAST] + 1:
                self._all_gaps.append((int(state[S_LAST]), text.first))
            self._all_gaps += text.gaps
            state[S_LAST] = text.last
            state[S_RECORDS] += 1
        if not counted:
            state[S_INVALID] += text.invalid
        return text.error

    def _save(self, length: int) -> None:
        """Make room: save the text up to ``length`` and move the rest to the front."""
        state, out = self._state, self._out
        self._take_gaps()
        self._parts.append(out[:length].tobytes())
        rest = out[length : state[S_LENGTH]].copy()
        out[: len(rest)] = rest
        state[S_LENGTH] = len(rest)
        state[S_BATCH] = 0

    def _take_gaps(self) -> None:
        found = int(self._state[S_GAPS])
        self._all_gaps += [(int(before), int(after)) for before, after in self._gaps[:found]]
        self._state[S_GAPS] = 0
