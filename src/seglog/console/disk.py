"""The log directories that the console draws: partitions, segments, indexes, batches, bytes and look-ups.

Directories may be in use, and files may go at any time. Nothing is written. What costs more than a few reads has a
bound, and its answer says where to go on.
"""

from __future__ import annotations

import os.path
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any, Final, NamedTuple

from seglog.cli.dump.json_lines import batch_documents
from seglog.cli.offline.find import lookup_document
from seglog.console.byte_fields import ByteField, batch_fields, entry_fields, entry_size, record_fields
from seglog.core.clock import Clock
from seglog.core.config import LogConfig
from seglog.core.errors import (
    CorruptError,
    InvalidLogDirError,
    SeglogError,
    UnknownPartitionError,
    UnsupportedFormatError,
)
from seglog.core.fs import File, Fs
from seglog.core.topic_names import INTERNAL_TOPICS
from seglog.core.types import MAX_INT64, TopicPartition
from seglog.records import any_magic
from seglog.records.batch import BATCH_OVERHEAD, CODEC_MASK, Entry, read_header
from seglog.records.compression import decompress
from seglog.sources.directories.partition_files import read_extent, read_segments
from seglog.storage.directory.catalog import config_of_found
from seglog.storage.formats.checkpoints import encode_id, read_leader_epochs, read_offsets
from seglog.storage.formats.paths import (
    CLEANER_OFFSETS,
    META_PROPERTIES,
    RECOVERY_POINTS,
    PartitionDir,
    SegmentPaths,
    is_log_dir,
    is_partition,
    list_partitions,
    partition_at,
    segment_paths,
)
from seglog.storage.formats.topics_file import read_topics
from seglog.storage.log.index import OFFSET_ENTRY, TIME_ENTRY, count_offset_entries, count_time_entries, last_true
from seglog.storage.log.reads import AbortedFilter
from seglog.storage.log.retention import SegmentFacts, expired_segments
from seglog.storage.log.transaction_index import AbortedTxn
from seglog.storage.offline.batch_boundaries import IndexBoundaries
from seglog.storage.offline.batch_reading import Chunk, iter_headers, read_chunks
from seglog.storage.offline.lookup import find_offset, find_timestamp, largest_timestamp
from seglog.storage.offline.top_files import TopFiles
from seglog.storage.offline.transaction_state import ReadCommittedState, read_transactions
from seglog.storage.offline.verify import verify

Document = dict[str, Any]
_LISTED_FOR: Final = 1.0
"""Seconds for which a list of partitions serves: a page of it after the other."""
_TIMED_SEGMENTS: Final = 512
"""Of so many segments the first timestamp is read, which takes a read of each log."""
_READ_AT_ONCE: Final = 1 << 20
_BATCH_BYTES: Final = 32 << 20
"""Bytes of batches that one answer reads."""
_TRANSACTION_BYTES: Final = 2 << 30
"""Bytes behind the newest producer snapshot up to which open transactions are searched."""
_VERIFIED_BYTES: Final = 1 << 30
_DECOMPRESSED: Final = 64 << 20
_COUNTED_BYTES: Final = 1 << 20
"""Decompressed bytes of a batch up to which its tombstones are counted."""


class Replica(NamedTuple):
    """A partition's directory, and the number of the log directory that it is in."""

    root: int
    path: str
    topic_partition: TopicPartition


class Disk:
    """Log directories by ``paths``: each is one, holds some (as `seglog cluster up` makes them), or is a partition's.

    `InvalidLogDirError` for any other path.
    """

    def __init__(self, fs: Fs, clock: Clock, paths: Sequence[str]) -> None:
        self._fs = fs
        self._clock = clock
        self.roots: list[str] = []
        self._only: dict[str, PartitionDir] = {}
        """Log directories of which one partition alone was named."""
        for path in paths:
            self._add(os.path.realpath(path))
        self._listed: tuple[float, list[tuple[TopicPartition, list[Replica]]]] | None = None
        self._transactions: dict[str, tuple[object, ReadCommittedState]] = {}

    def _add(self, path: str) -> None:
        fs = self._fs
        if not os.path.isdir(path):
            reason = "not a directory" if os.path.exists(path) else "No such file or directory"
            raise InvalidLogDirError(f"{path}: {reason}")
        if is_partition(fs, path):
            partition = partition_at(path)
            if partition is None:
                raise InvalidLogDirError(f"{path} has the files of a partition, but not its name: TOPIC-NUMBER")
            self.roots.append(os.path.dirname(path))
            self._only[self.roots[-1]] = partition
            return
        inside = [os.path.join(path, name) for name in sorted(fs.listdir(path))]
        directories = [one for one in inside if fs.exists(os.path.join(one, META_PROPERTIES))]
        if directories and not is_log_dir(fs, path):
            self.roots += directories
        elif is_log_dir(fs, path) or list_partitions(fs, path):
            self.roots.append(path)
        else:
            raise InvalidLogDirError(f"{path} is neither a log directory nor a partition's, and holds no log directory")

    # The list

    def _list(self) -> list[tuple[TopicPartition, list[Replica]]]:
        now = self._clock.monotonic()
        if self._listed is not None and now - self._listed[0] < _LISTED_FOR:
            return self._listed[1]
        found: dict[TopicPartition, list[Replica]] = {}
        for number, root in enumerate(self.roots):
            only = self._only.get(root)
            for path, partition in list_partitions(self._fs, root) if only is None else [only]:
                found.setdefault(partition, []).append(Replica(number, path, partition))
        rows = sorted(found.items(), key=lambda row: (row[0].topic in INTERNAL_TOPICS, row[0]))
        self._listed = (self._clock.monotonic(), rows)
        return rows

    def topics(self) -> dict[str, list[int]]:
        """All topics and the numbers of the partitions that are here, Kafka's internal topics last."""
        found: dict[str, list[int]] = {}
        for partition, _ in self._list():
            found.setdefault(partition.topic, []).append(partition.partition)
        return found

    def paths(self) -> list[str]:
        """The log directories, or of each of which one partition alone was named, that partition's."""
        return [self._only[root].path if root in self._only else root for root in self.roots]

    def partitions(self, text: str, first: int, count: int) -> Document:
        """A page of the partitions whose names contain ``text``, Kafka's internal topics last."""
        rows = [row for row in self._list() if text.lower() in str(row[0]).lower()]
        return {
            "total": len(rows),
            "first": first,
            "partitions": [
                {
                    "topic": partition.topic,
                    "partition": partition.partition,
                    "internal": partition.topic in INTERNAL_TOPICS,
                    "replicas": [self._sizes(replica) for replica in replicas],
                }
                for partition, replicas in rows[first : first + count]
            ],
        }

    def _sizes(self, replica: Replica) -> Document:
        segments = []
        with suppress(FileNotFoundError):  # deleted meanwhile
            segments = read_segments(self._fs, replica.path)
        return {"root": replica.root, "segments": len(segments), "size": sum(one.size for one in segments)}

    def replicas(self, topic: str, partition: int) -> list[Replica]:
        """`UnknownPartitionError` if no directory has it."""
        wanted = TopicPartition(topic, partition)
        for at, replicas in self._list():
            if at == wanted:
                return replicas
        raise UnknownPartitionError(f"{topic}-{partition} is in none of the directories")

    def replica(self, topic: str, partition: int, root: int | None) -> Replica:
        """The replica in log directory ``root``, or the first one."""
        found = self.replicas(topic, partition)
        for one in found:
            if root is None or one.root == root:
                return one
        raise UnknownPartitionError(f"{topic}-{partition} is not in log directory {root}")

    # A partition

    def partition(self, topic: str, partition: int, root: int | None, config: Mapping[str, str] | None) -> Document:
        """Everything that the picture of a log needs. ``config``: the topic's, if brokers were asked."""
        chosen = self.replica(topic, partition, root)
        replicas = [self._replica(one) for one in self.replicas(topic, partition)]
        shown = next(one for one in replicas if one["root"] == chosen.root)
        ends = [one["end"] for one in replicas if one["end"] is not None]
        for one in replicas:
            one["lag"] = None if one["end"] is None else max(ends) - one["end"]
        return {
            "topic": topic,
            "partition": partition,
            "now": self._clock.now_ms(),
            **shown,
            **self._details(chosen, shown),
            "retention": self._retention(chosen, shown, config),
            "replicas": replicas,
        }

    def _replica(self, replica: Replica) -> Document:
        top = TopFiles(self._fs, self.roots[replica.root])
        partition = replica.topic_partition
        found: Document = {
            "root": replica.root,
            "directory": self.roots[replica.root],
            "broker": top.broker,
            "inUse": top.in_use,
            "highWatermark": top.claimed(partition),
            "highWatermarkFrom": top.source,
        }
        try:
            extent = read_extent(self._fs, replica.path, partition, top.log_starts.get(partition, 0))
        except CorruptError as error:
            found["damage"] = str(error)
            extent = read_extent(self._fs, replica.path, partition, top.log_starts.get(partition, 0), permissive=True)
        bases = [one.base_offset for one in extent.segments]
        return {
            **found,
            "topicId": encode_id(extent.topic_id) if extent.topic_id else None,
            "start": extent.log_start,
            "end": extent.log_end,
            "size": sum(one.size for one in extent.segments),
            "segments": [
                {"baseOffset": one.base_offset, "nextOffset": following, "size": one.size}
                for one, following in zip(extent.segments, [*bases[1:], extent.log_end], strict=False)
            ],
        }

    def _details(self, replica: Replica, shown: Document) -> Document:
        partition, root = replica.topic_partition, self.roots[replica.root]
        transactions = self._read_transactions(replica.path, shown)
        stable = shown["highWatermark"] if shown["highWatermark"] is not None else shown["end"]
        if transactions is not None and transactions.last_stable_offset is not None:
            stable = min(stable, transactions.last_stable_offset)
        timed = len(shown["segments"]) <= _TIMED_SEGMENTS
        return {
            "lastStableOffset": None if transactions is None else stable,
            "recoveryPoint": read_offsets(self._fs, os.path.join(root, RECOVERY_POINTS)).get(partition),
            "cleanerPoint": read_offsets(self._fs, os.path.join(root, CLEANER_OFFSETS)).get(partition),
            "epochs": [
                {"epoch": epoch, "startOffset": start} for epoch, start in read_leader_epochs(self._fs, replica.path)
            ],
            "aborted": [] if transactions is None else [_aborted_document(txn) for txn in transactions.aborted],
            "segments": [
                {**one, **self._segment(segment_paths(replica.path, one["baseOffset"]), timed=timed)}
                for one in shown["segments"]
            ],
        }

    def _read_transactions(self, path: str, shown: Document) -> ReadCommittedState | None:
        """None if too much would be read. Kept until the partition grows."""
        state = (shown["size"], shown["end"], shown["highWatermark"])
        known = self._transactions.get(path)
        if known is not None and known[0] == state:
            return known[1]
        if shown["segments"] and shown["segments"][-1]["size"] > _TRANSACTION_BYTES:
            return None
        mark = shown["highWatermark"]
        found = read_transactions(self._fs, path, below=MAX_INT64 if mark is None else mark)
        self._transactions[path] = (state, found)
        return found

    def _segment(self, paths: SegmentPaths, *, timed: bool) -> Document:
        fs = self._fs
        offsets = fs.read(paths.offset_index) if fs.exists(paths.offset_index) else b""
        times = fs.read(paths.timeindex) if fs.exists(paths.timeindex) else b""
        found: Document = {
            "file": os.path.basename(paths.log),
            "indexEntries": count_offset_entries(offsets),
            "timeIndexEntries": count_time_entries(times),
            "indexSize": len(offsets),
            "timeIndexSize": len(times),
            "firstTimestamp": None,
            "maxTimestamp": None,
            "transactions": fs.exists(paths.txnindex),
            "snapshot": fs.exists(paths.snapshot),
        }
        with suppress(CorruptError):
            found["maxTimestamp"] = _or_none(largest_timestamp(fs, paths))
        if timed:
            with suppress(CorruptError), closing(fs.open(paths.log, write=False)) as file:
                for facts in iter_headers(file):
                    found["firstTimestamp"] = _or_none(facts.first_timestamp)
                    break
        return found

    def _retention(self, replica: Replica, shown: Document, config: Mapping[str, str] | None) -> Document:
        """What retention takes, by the pure decision of the log itself; and when the oldest segments go next."""
        topic, source = replica.topic_partition.topic, "brokers"
        if config is None:
            entry = read_topics(self._fs, self.roots[replica.root]).get(topic)
            source = "seglog.topics" if entry is not None else "none"
            config = entry.config if entry is not None else config_of_found(topic)
        known = {name: text for name, text in config.items() if name in _RETENTION_KEYS}
        log = LogConfig.from_mapping(known)
        now = self._clock.now_ms()
        details = {one["baseOffset"]: self._largest(replica.path, one["baseOffset"]) for one in shown["segments"]}
        last = shown["segments"][-1]["baseOffset"] if shown["segments"] else None
        facts = [
            SegmentFacts(
                one["baseOffset"], one["nextOffset"], one["size"], details[one["baseOffset"]], one["baseOffset"] == last
            )
            for one in shown["segments"]
        ]
        mark = shown["highWatermark"] if shown["highWatermark"] is not None else shown["end"]
        gone = expired_segments(facts, config=log, log_start_offset=shown["start"], high_watermark=mark, now_ms=now)
        reasons = {one.base_offset: one.reason.value for one in gone}
        rows, latest, before = [], 0, 0
        for one in facts:
            latest = max(latest, one.largest_timestamp)
            before += one.size
            rows.append(
                {
                    "baseOffset": one.base_offset,
                    "goes": reasons.get(one.base_offset),
                    "at": latest + log.retention_ms + 1 if log.delete and log.retention_ms >= 0 else None,
                    "afterBytes": max(log.retention_bytes + before - shown["size"], 0)
                    if log.delete and log.retention_bytes >= 0
                    else None,
                }
            )
        return {
            "source": source,
            "policy": [*(("delete",) if log.delete else ()), *(("compact",) if log.compact else ())],
            "retentionMs": log.retention_ms,
            "retentionBytes": log.retention_bytes,
            "segments": rows,
        }

    def _largest(self, path: str, base_offset: int) -> int:
        paths = segment_paths(path, base_offset)
        largest = -1
        with suppress(CorruptError):
            largest = largest_timestamp(self._fs, paths)
        return largest if largest >= 0 else self._fs.stat(paths.log).mtime_ms

    # A segment

    def index(self, replica: Replica, base: int, most: int, around: int | None) -> Document:
        """The entries of both indexes, or each n-th of them if there are more than ``most``. With ``around``, a slot,
        the ``most`` entries around it, and those of the time index for the same offsets."""
        paths, fs = segment_paths(replica.path, base), self._fs
        offsets = fs.read(paths.offset_index) if fs.exists(paths.offset_index) else b""
        times = fs.read(paths.timeindex) if fs.exists(paths.timeindex) else b""
        count, time_count = count_offset_entries(offsets), count_time_entries(times)
        slots, time_slots = _stride(count, most), _stride(time_count, most)
        if around is not None:
            first = min(max(around - most // 2, 0), max(count - most, 0))
            slots = range(first, min(first + most, count))
        rows = [OFFSET_ENTRY.unpack_from(offsets, slot * OFFSET_ENTRY.size) for slot in slots]
        if around is not None and rows:
            low = rows[0][0] if slots.start else 0
            high = rows[-1][0] if slots.stop < count else MAX_INT64
            time_slots = range(*(_last_time(times, time_count, bound) + 1 for bound in (low - 1, high)))
            time_slots = time_slots[: 2 * most]
        time_rows = [TIME_ENTRY.unpack_from(times, slot * TIME_ENTRY.size) for slot in time_slots]
        return {
            "baseOffset": base,
            "size": fs.stat(paths.log).size,
            "entries": count,
            "slots": list(slots),
            "offsets": [base + relative for relative, _ in rows],
            "positions": [position for _, position in rows],
            "timeEntries": time_count,
            "timeSlots": list(time_slots),
            "timestamps": [timestamp for timestamp, _ in time_rows],
            "timeOffsets": [base + relative for _, relative in time_rows],
        }

    def batches(self, replica: Replica, base: int, *, offset: int | None, position: int | None, most: int) -> Document:
        """Batches of a segment from the one of ``offset``, or from ``position``, where one begins. ``next`` is where
        to go on; None at the end."""
        segment = self._extent_of(replica, base)
        start = position or 0
        boundaries = IndexBoundaries(self._fs, segment)
        if offset is not None:
            start = boundaries.start_of(offset)
        known = self._transactions.get(replica.path)
        transactions = read_transactions(self._fs, replica.path) if known is None else known[1]
        aborted = AbortedFilter(transactions.aborted)
        rows: list[Document] = []
        damage, following, read = None, start, 0
        with closing(self._fs.open(segment.log, write=False)) as file:
            size = file.size()
            try:
                for chunk in read_chunks(file, start, size, size=_READ_AT_ONCE):
                    for document, entry in zip(batch_documents(chunk), chunk.entries, strict=True):
                        following = chunk.position + entry.position + entry.size
                        if offset is not None and int(str(document["lastOffset"])) < offset:
                            continue
                        rows.append({**document, **_of_records(chunk, entry, aborted)})
                        if len(rows) == most:
                            break
                    read += len(chunk.data)
                    if len(rows) == most or read >= _BATCH_BYTES:
                        break
            except CorruptError as error:
                damage = str(error)
        for before, row in zip([None, *rows], rows, strict=False):
            first = row["baseOffset"]
            row["hole"] = 0 if before is None or first is None else max(first - before["lastOffset"] - 1, 0)
        return {
            "baseOffset": base,
            "size": size,
            "batches": rows,
            "next": following if damage is None and following < size and rows else None,
            "damage": damage,
        }

    def _extent_of(self, replica: Replica, base: int) -> Any:
        for one in read_segments(self._fs, replica.path):
            if one.base_offset == base:
                return one
        raise UnknownPartitionError(f"{replica.topic_partition} has no segment {base:020d}")

    # Bytes

    def batch_bytes(self, replica: Replica, base: int, position: int, most: int) -> Document:
        """The first bytes of the batch at ``position``, with the names of its header."""
        segment = self._extent_of(replica, base)
        with closing(self._fs.open(segment.log, write=False)) as file:
            data = file.pread(most, position)
        fields = batch_fields(data)
        return _bytes_document(os.path.basename(segment.log), position, data, fields)

    def record_bytes(self, replica: Replica, base: int, position: int, number: int, most: int) -> Document:
        """The bytes of one record, decompressed, with the names of its fields. ``position`` is the batch's."""
        segment = self._extent_of(replica, base)
        with closing(self._fs.open(segment.log, write=False)) as file:
            data = _whole_batch(file, position)
        header = read_header(data)
        if header.magic < 2:
            return _bytes_document(os.path.basename(segment.log), position, data[:most], batch_fields(data))
        records = data[BATCH_OVERHEAD:]
        codec = header.attributes & CODEC_MASK
        if codec:
            records = decompress(codec, records, limit=_DECOMPRESSED)
        start, end, fields = record_fields(records, number)
        where = f"record {number} of the batch at {position}" + (", decompressed" if codec else "")
        at = start if codec else position + BATCH_OVERHEAD + start
        return {**_bytes_document(os.path.basename(segment.log), at, records[start:end][:most], fields), "where": where}

    def entry_bytes(self, replica: Replica, base: int, kind: str, slot: int) -> Document:
        """An entry of an index, with its neighbours' bytes around it."""
        paths = segment_paths(replica.path, base)
        path = {"index": paths.offset_index, "timeindex": paths.timeindex, "txnindex": paths.txnindex}[kind]
        size = entry_size(kind)
        with closing(self._fs.open(path, write=False)) as file:
            data = file.pread(size * 8, slot * size)
        return _bytes_document(os.path.basename(path), slot * size, data, entry_fields(kind, data, base))

    # Look-ups and checks

    def look_up(self, replica: Replica, offset: int | None, timestamp: int | None) -> Document:
        """The steps of `seglog find --explain`, and the record."""
        found = (
            find_offset(self._fs, replica.path, offset)
            if offset is not None
            else find_timestamp(self._fs, replica.path, timestamp or 0)
        )
        return lookup_document(found)

    def verify(self, replica: Replica, progress: Callable[[int], None] | None = None) -> Any:
        """As `seglog verify`, of partitions up to 1 GiB. ``progress`` gets bytes, and may raise to end it."""
        size = sum(one.size for one in read_segments(self._fs, replica.path))
        if size > _VERIFIED_BYTES:
            raise UnsupportedFormatError(
                f"{size} bytes would take long to check here: run seglog verify {replica.path}"
            )
        return verify([replica.path], fs=self._fs, workers=1, progress=progress)

    # Records

    def entries_from(self, replica: Replica, offset: int) -> Iterator[tuple[Chunk, Entry]]:
        """The batches from the one that has ``offset`` on, over all segments."""
        segments = read_segments(self._fs, replica.path)
        chosen = max(bisect_right([one.base_offset for one in segments], offset) - 1, 0)
        for number, segment in enumerate(segments[chosen:]):
            start = IndexBoundaries(self._fs, segment).start_of(offset) if number == 0 else 0
            with closing(self._fs.open(segment.log, write=False)) as file:
                for chunk in read_chunks(file, start, size=_READ_AT_ONCE):
                    for entry in chunk.entries:
                        yield chunk, entry

    def bounds(self, replica: Replica) -> tuple[int, int]:
        """The log's start and end."""
        top = TopFiles(self._fs, self.roots[replica.root])
        partition = replica.topic_partition
        extent = read_extent(self._fs, replica.path, partition, top.log_starts.get(partition, 0), permissive=True)
        return extent.log_start, extent.log_end


_RETENTION_KEYS: Final = ("cleanup.policy", "retention.ms", "retention.bytes")


def _or_none(timestamp: int) -> int | None:
    return timestamp if timestamp >= 0 else None


def _stride(count: int, most: int) -> range:
    """
    >>> list(_stride(4, 10)), list(_stride(10, 5))
    ([0, 1, 2, 3], [0, 2, 4, 6, 8])
    """
    return range(0, count, max(-(-count // max(most, 1)), 1))


def _last_time(times: bytes, count: int, relative: int) -> int:
    """The last slot of a time index whose offset is at most ``relative``; -1 if there is none."""
    return last_true(count, lambda slot: TIME_ENTRY.unpack_from(times, slot * TIME_ENTRY.size)[1] <= relative)


def _aborted_document(txn: AbortedTxn) -> Document:
    return {
        "producerId": txn.producer_id,
        "firstOffset": txn.first_offset,
        "lastOffset": txn.last_offset,
        "lastStableOffset": txn.last_stable_offset,
    }


def _of_records(chunk: Chunk, entry: Entry, aborted: AbortedFilter) -> Document:
    """Facts that a batch's header does not tell: whether it is aborted, and its tombstones (None: not known)."""
    tombstones: int | None = None
    is_aborted = False
    with suppress(SeglogError):
        header = any_magic.describe(chunk.data, entry, deep=False)
        is_aborted = aborted.skips(header)
        if header.is_control:
            tombstones = 0
        else:
            records = any_magic.decode(chunk.data, entry, limit=_COUNTED_BYTES)
            tombstones = sum(one.value is None for one in records)
    return {"isAborted": is_aborted, "tombstones": tombstones}


def _whole_batch(file: File, position: int) -> bytes:
    for chunk in read_chunks(file, position, size=1 << 16):
        first = chunk.entries[0]
        return bytes(chunk.data[: first.size])
    raise UnknownPartitionError(f"{file.path} has no whole batch at position {position}")


def _bytes_document(name: str, position: int, data: bytes, fields: Sequence[ByteField]) -> Document:
    return {
        "file": name,
        "where": name,
        "position": position,
        "hex": bytes(data).hex(),
        "fields": [one._asdict() for one in fields],
    }
