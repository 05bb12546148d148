"""A round of compaction, carried out: read the dirty part, then write every group of segments again (``Cleaner.java``).

Nothing here changes the log: the ``.cleaned`` files that come out of a round are for `seglog.storage.compaction` to put
in place. It may run in the log's process or in another.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator
from struct import Struct
from typing import Final, Protocol

from seglog.core.clock import Clock
from seglog.core.errors import CorruptBatchError, CorruptError
from seglog.core.extras import require
from seglog.core.fs import File, Fs
from seglog.records.batch import LOG_OVERHEAD
from seglog.storage.compaction.cleaned_segment import CleanedSegment
from seglog.storage.compaction.offset_map import Keys, OffsetMap
from seglog.storage.compaction.plain_cleaner import PlainFilter, PlainMapper, Transactions
from seglog.storage.compaction.round import COMPILED, CleanedGroup, OffsetMapStats, Round, SourceSegment, group_sources
from seglog.storage.formats.paths import segment_paths

_CHUNK: Final = 4 << 20
_LEAST_WAIT: Final = 0.001
_LOOK_EVERY: Final = 0.2
"""Seconds between two checks whether to stop, while a round waits to keep to its speed."""
_LENGTH: Final = Struct(">i")
_SEED_BYTES: Final = 16


class CleaningAbortedError(Exception):
    """The round was told to stop; nothing of it counts."""


class Throttler:
    """Keeps reads and writes below a number of bytes a second (``log.cleaner.io.max.bytes.per.second``)."""

    __slots__ = ("_clock", "_from", "_rate", "_spent", "_wait")

    def __init__(self, bytes_per_second: float, clock: Clock, wait: Callable[[float], object]) -> None:
        """``wait(seconds)`` may come back early, when there is something else to do."""
        self._rate = bytes_per_second
        self._clock = clock
        self._wait = wait
        self._from = clock.monotonic()
        self._spent = 0

    def spend(self, count: int) -> None:
        self._spent += count
        ahead = self._spent / self._rate - (self._clock.monotonic() - self._from)
        if ahead > 0:
            self._wait(ahead)


def wait_for(seconds: float, stop: Callable[[], bool]) -> None:
    """Wait; `CleaningAbortedError` if the round is to stop. Waits under a millisecond add up instead."""
    never = threading.Event()
    while seconds > _LEAST_WAIT:
        if stop():
            raise CleaningAbortedError
        never.wait(min(seconds, _LOOK_EVERY))
        seconds -= _LOOK_EVERY


class ChunkMapper(Protocol):
    """The first pass over the log: it collects the keys of the dirty part.

    Its method takes a chunk of a log file that begins with a batch, and returns how many of its bytes were whole
    batches, as `ChunkFilter`'s does; positions in their errors count from the chunk's start.
    """

    @property
    def offsets(self) -> Keys: ...
    @property
    def is_full(self) -> bool:
        """The map is full: nothing more is to be put in."""

    @property
    def mapped(self) -> int:
        """Records read."""

    def map_chunk(self, chunk: bytes) -> int: ...


class ChunkFilter(Protocol):
    """The second pass, from the log's beginning on: it decides what stays. Counts as `BatchFilter` does."""

    @property
    def transactions(self) -> Transactions: ...
    @property
    def read(self) -> int: ...
    @property
    def kept(self) -> int: ...
    @property
    def keyless(self) -> int: ...
    def filter_chunk(self, chunk: bytes, cleaned: CleanedSegment, *, legacy_tombstones_stay: bool) -> int: ...


def make_engine(round_: Round) -> tuple[ChunkMapper, Callable[[], ChunkFilter]]:
    """The mapper, and a function that makes the filter for the finished map."""
    if round_.engine != COMPILED:
        offsets = OffsetMap(round_.max_entries, os.urandom(_SEED_BYTES))
        return PlainMapper(round_, offsets), lambda: PlainFilter(round_, offsets)
    require("numba", "fast", purpose="compaction with compiled loops")
    from seglog.storage.compaction.compiled_cleaner import CompiledFilter, CompiledMap, CompiledMapper

    table = CompiledMap(round_.slots, round_.max_entries)
    return CompiledMapper(round_, table), lambda: CompiledFilter(round_, table)


def clean(
    round_: Round,
    fs: Fs,
    clock: Clock,
    *,
    should_stop: Callable[[], bool] = lambda: False,
    wait: Callable[[float], object] = lambda _seconds: None,
) -> Generator[OffsetMapStats | CleanedGroup]:
    """Carry a round out: first what the map came to, then each group when its ``.cleaned`` files are on the disk.

    Raises `CorruptError`s for a batch with a wrong CRC or that cannot be read: what was yielded before stays good.
    `CleaningAbortedError` once ``should_stop`` says so; it is asked after every 4 MiB. ``wait`` is how the round keeps
    to ``max_bytes_per_second``.
    """
    mapper, make_filter = make_engine(round_)
    reader = SourceReader(fs, round_.directory, Throttler(round_.max_bytes_per_second, clock, wait), should_stop)
    started = clock.monotonic()
    for source in round_.dirty_sources:
        start = round_.dirty_position if source.base_offset <= round_.first_dirty else 0
        reader.read(source, start, mapper.map_chunk, lambda: mapper.is_full)
        if mapper.is_full:
            break
        mapper.offsets.read_up_to(source.next_base_offset - 1)  # also where the last offsets are a gap
    end_offset = mapper.offsets.latest_offset + 1
    seconds = clock.monotonic() - started
    yield OffsetMapStats(end_offset, len(mapper.offsets), mapper.mapped, reader.bytes, seconds)
    filtering = make_filter()
    groups = group_sources(
        [source for source in round_.sources if source.base_offset < end_offset],
        segment_bytes=round_.segment_bytes,
        index_bytes=round_.index_bytes,
        first_uncleanable=round_.first_uncleanable,
    )
    for group in groups:
        yield clean_group(round_, group, fs, filtering, reader)


def clean_group(
    round_: Round,
    group: tuple[SourceSegment, ...],
    fs: Fs,
    filtering: ChunkFilter,
    reader: SourceReader,
    directory: str | None = None,
) -> CleanedGroup:
    """Write one segment in place of a group's, into ``directory`` (default: the log's)."""
    before = (reader.bytes, filtering.read, filtering.kept, filtering.keyless)
    cleaned = CleanedSegment(
        fs,
        directory or round_.directory,
        group[0].base_offset,
        index_bytes=round_.index_bytes,
        interval=round_.index_interval,
    )
    try:
        filtering.transactions.retained.clear()
        horizon = round_.legacy_delete_horizon_ms
        for source in group:
            stay = source.mtime_ms > horizon

            def filter_chunk(chunk: bytes, *, stay: bool = stay) -> int:
                written = cleaned.position
                used = filtering.filter_chunk(chunk, cleaned, legacy_tombstones_stay=stay)
                reader.pace.spend(cleaned.position - written)
                return used

            reader.read(source, 0, filter_chunk, lambda: False)
        cleaned.finish(filtering.transactions.retained, group[-1].mtime_ms)
    except BaseException:
        cleaned.close()
        raise
    return CleanedGroup(
        bases=tuple(source.base_offset for source in group),
        bytes_read=reader.bytes - before[0],
        bytes_written=cleaned.position,
        messages_read=filtering.read - before[1],
        messages_written=filtering.kept - before[2],
        keyless=filtering.keyless - before[3],
    )


class SourceReader:
    """Reads source segments in chunks; counts the bytes that were whole batches."""

    __slots__ = ("_directory", "_fs", "_should_stop", "bytes", "pace")

    def __init__(self, fs: Fs, directory: str, pace: Throttler, should_stop: Callable[[], bool]) -> None:
        self._fs = fs
        self._directory = directory
        self._should_stop = should_stop
        self.pace = pace
        self.bytes = 0

    def read(self, source: SourceSegment, start: int, take: Callable[[bytes], int], is_done: Callable[[], bool]) -> int:
        """Hand the segment's bytes from ``start`` on to ``take``, which says how many of them it has used.

        Returns the position after them. The segment has to end with a whole batch.
        """
        path = segment_paths(self._directory, source.base_offset).log
        file = self._fs.open(path, write=False)
        try:
            position, wanted = start, _CHUNK
            while position < source.size:
                if self._should_stop():
                    raise CleaningAbortedError
                asked = min(wanted, source.size - position)
                chunk = file.pread(asked, position)
                if len(chunk) < asked:
                    reason = f"the file ends here, and had {source.size} bytes"
                    raise CorruptBatchError(reason, position=position + len(chunk), file=path)
                self.pace.spend(len(chunk))
                try:
                    used = take(chunk)
                except CorruptError as error:
                    raise error.at(file=path, base=position) from error
                self.bytes += used
                position += used
                if is_done():
                    break
                wanted = _CHUNK if used else _larger(chunk, position, source, file)
            return position
        finally:
            file.close()


def _larger(chunk: bytes, position: int, source: SourceSegment, file: File) -> int:
    """How much to read where one batch is larger than a chunk."""
    size = _LENGTH.unpack_from(chunk, 8)[0] + LOG_OVERHEAD if len(chunk) >= LOG_OVERHEAD else LOG_OVERHEAD
    if size <= len(chunk) or size > source.size - position:
        raise CorruptBatchError(
            f"a batch of {size} bytes with {source.size - position} left in its segment",
            position=position,
            file=file.path,
        )
    return int(size)
