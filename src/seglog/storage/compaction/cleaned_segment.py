"""The files of a segment that compaction writes: ``.cleaned`` until all of it is on the disk."""

from __future__ import annotations

from collections.abc import Sequence

from seglog.core.errors import CorruptBatchError
from seglog.core.fs import File, Fs
from seglog.core.types import MAX_INT32, NO_TIMESTAMP, Buffer
from seglog.storage.formats.paths import CLEANED, parse_file_name, segment_paths
from seglog.storage.log.index import OFFSET_ENTRY, TIME_ENTRY
from seglog.storage.log.transaction_index import AbortedTxn, encode_aborted

_BUFFER = 1 << 20


class CleanedSegment:
    """Written once from front to back; the indexes are those that appending the same batches would make.

    Invariants: ``position`` bytes of whole batches were written, ``since_entry`` of them after the last one that got
    an index entry; ``max_timestamp`` is the largest of any batch, -1 before the first.
    """

    __slots__ = (
        "_file", "_fs", "_index_bytes", "_offsets", "_paths", "_pending", "_pending_bytes", "_times", "base_offset",
        "interval", "last_time", "max_timestamp", "max_timestamp_offset", "position", "since_entry",
    )  # fmt: skip

    def __init__(self, fs: Fs, directory: str, base_offset: int, *, index_bytes: int, interval: int) -> None:
        """``index_bytes`` bounds each index, ``interval`` is ``index.interval.bytes``."""
        self._fs = fs
        self._paths = segment_paths(directory, base_offset)
        self._index_bytes = index_bytes
        self._offsets = bytearray()
        self._times = bytearray()
        self._pending: list[Buffer] = []
        self._pending_bytes = 0
        self.base_offset = base_offset
        self.interval = interval
        self.position = 0
        self.since_entry = 0
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        self.last_time = (NO_TIMESTAMP, base_offset)
        self._file: File = fs.open(self._paths.log + CLEANED, create=True)
        self._file.truncate(0)

    def add_batch(self, data: Buffer, max_timestamp: int, last_offset: int) -> None:
        """Write one batch of any format and note it in the indexes."""
        if last_offset - self.base_offset > MAX_INT32:
            raise self.overflow(last_offset)
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if self.since_entry > self.interval:
            self.add_entry(last_offset, self.position, self.max_timestamp, self.max_timestamp_offset)
            self.since_entry = 0
        self.since_entry += len(data)
        self.write(data)

    def wrote(self, *, since_entry: int, max_timestamp: int, max_timestamp_offset: int) -> None:
        """Batches were written with `write`, and noted in the indexes with `add_entry`."""
        self.since_entry = since_entry
        self.max_timestamp = max_timestamp
        self.max_timestamp_offset = max_timestamp_offset

    def overflow(self, last_offset: int) -> CorruptBatchError:
        """The error for a segment of more offsets than an index can say; the next start splits it (KAFKA-6264)."""
        return CorruptBatchError(
            f"offset {last_offset} is 2^31 or more above {self.base_offset}, where its segment begins",
            offset=last_offset,
            file=self._paths.log,
        )

    def write(self, data: Buffer) -> None:
        """Write whole batches that are noted already."""
        self.position += len(data)
        self._pending.append(data)
        self._pending_bytes += len(data)
        if self._pending_bytes >= _BUFFER:
            self._flush()

    def _flush(self) -> None:
        if self._pending:
            data = self._pending[0] if len(self._pending) == 1 else b"".join(self._pending)
            self._file.pwrite(data, self.position - self._pending_bytes)
            self._pending.clear()
            self._pending_bytes = 0

    def add_entry(self, last_offset: int, position: int, max_timestamp: int, max_timestamp_offset: int) -> None:
        """An entry of the offset index, and of the time index if the time is later than the last one's."""
        if len(self._offsets) + OFFSET_ENTRY.size <= self._index_bytes:
            self._offsets += OFFSET_ENTRY.pack(last_offset - self.base_offset, position)
        if len(self._times) + 2 * TIME_ENTRY.size <= self._index_bytes:  # the last place is for `finish`
            self._add_time(max_timestamp, max_timestamp_offset)

    def _add_time(self, timestamp: int, offset: int) -> None:
        if timestamp > self.last_time[0] and offset >= self.last_time[1]:
            self._times += TIME_ENTRY.pack(timestamp, offset - self.base_offset)
            self.last_time = (timestamp, offset)

    def finish(self, aborted: Sequence[AbortedTxn], mtime_ms: int) -> None:
        """Everything is on the disk when this returns. The files get the time of the last segment they are made of."""
        self._flush()
        self._file.fsync()
        self._file.close()
        self._add_time(self.max_timestamp, self.max_timestamp_offset)
        self._fs.write(self._paths.offset_index + CLEANED, self._offsets)
        self._fs.write(self._paths.timeindex + CLEANED, self._times)
        if aborted:
            self._fs.write(self._paths.txnindex + CLEANED, b"".join(map(encode_aborted, aborted)))
        for path in (self._paths.log, self._paths.offset_index, self._paths.timeindex):
            self._fs.set_mtime(path + CLEANED, mtime_ms)

    def close(self) -> None:
        """Stop in the middle: the files are left for `remove_cleaned`."""
        self._file.close()


def remove_cleaned(fs: Fs, directory: str) -> None:
    """Delete what an unfinished round left.

    A ``.cleaned`` file tells the next start that every ``.swap`` from its offset on is unfinished: an old one must not
    lie there when a new round gets to its first ``.swap``.
    """
    stale = [name for name in fs.listdir(directory) if (file := parse_file_name(name)) and file.state == CLEANED]
    for name in stale:
        fs.unlink(f"{directory}/{name}")
    if stale:
        fs.fsync_dir(directory)
