"""Compares two log directories: pairs their partitions, chooses the offsets to compare, and summarises the result."""

from __future__ import annotations

import os.path
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple
from uuid import UUID

from seglog.core.errors import CorruptError, InvalidLogDirError, UnknownTopicError
from seglog.core.fs import Fs, NotRegularFileError, OsFs
from seglog.core.types import TopicPartition
from seglog.storage.formats.checkpoints import encode_id, read_partition_metadata
from seglog.storage.formats.paths import META_PROPERTIES, PartitionDir, list_partitions, list_segments, partition_at
from seglog.storage.offline.batch_boundaries import IndexBoundaries, SegmentBytes, find_end
from seglog.storage.offline.compare import (
    REPLICAS,
    CompareRules,
    CompareVerdict,
    Comparison,
    RangeKind,
    Side,
    compare,
    judge,
)
from seglog.storage.offline.top_files import TopFiles

Until = Literal["highWatermark", "logEnd"]
STRETCH: Final = 64 << 20
"""About how many bytes of one log are compared in one piece."""


class PartitionCopy(NamedTuple):
    """A partition in one of the directories. ``high_watermark`` is None if no file has one."""

    path: str
    side: Side
    high_watermark: int | None
    topic_id: UUID | None


class PartitionPair(NamedTuple):
    """A partition in one or both directories; the offsets to compare are from ``first`` to before ``end``."""

    partition: TopicPartition
    left: PartitionCopy | None
    right: PartitionCopy | None
    first: int
    end: int

    def cuts(self, fs: Fs, stretch: int = STRETCH) -> list[tuple[int, int]]:
        """The offsets in pieces of about ``stretch`` bytes, cut at batch boundaries of the longer log."""
        if self.left is None or self.right is None:
            return []
        longer = max(self.left.side, self.right.side, key=lambda side: sum(one.size for one in side.segments))
        starts = [self.first]
        for segment in longer.segments:
            boundaries = IndexBoundaries(fs, segment)
            for position in range(0, segment.size, stretch):
                at = boundaries.cut(position - 1, position, segment.size) if position else 0
                if at < segment.size and starts[-1] < (offset := boundaries.offset_at(at)) < self.end:
                    starts.append(offset)
        return list(zip(starts, [*starts[1:], self.end], strict=True)) if self.first < self.end else []


class PairComparison(NamedTuple):
    """The result of one pair. A partition that only one directory has is missing as a whole in the other."""

    pair: PartitionPair
    findings: list[Comparison]
    rules: CompareRules

    @property
    def is_other_topic(self) -> bool:
        """Whether the two topics have only the name in common."""
        left, right = self.pair.left, self.pair.right
        ids = {one.topic_id for one in (left, right) if one is not None and one.topic_id is not None}
        return self.rules.topic_ids and len(ids) > 1

    @property
    def verdict(self) -> CompareVerdict:
        if self.is_other_topic or self.pair.left is None or self.pair.right is None:
            return CompareVerdict.DIFFERENT
        return judge(self.findings)

    @property
    def is_fine(self) -> bool:
        return self.verdict.is_fine(self.rules)

    @property
    def differences(self) -> list[Comparison]:
        """The findings that the rules count as differences."""
        layout = self.rules.layout and self.rules.compaction
        return [
            one
            for one in self.findings
            if one.kind is not RangeKind.SAME and (layout or one.kind is not RangeKind.LAYOUT)
        ]

    @property
    def first_difference(self) -> int | None:
        return self.differences[0].first if self.differences else None

    def __str__(self) -> str:
        if self.is_other_topic and self.pair.left is not None and self.pair.right is not None:
            ids = [encode_id(one.topic_id) for one in (self.pair.left, self.pair.right) if one.topic_id is not None]
            return f"{self.pair.partition}: two topics of one name, with ids {' and '.join(ids)}"
        at = "" if self.first_difference is None else f", first at offset {self.first_difference}"
        return f"{self.pair.partition}: {self.verdict}{at}"


def compare_directories(
    left: str,
    right: str,
    *,
    topics: Sequence[str] = (),
    until: Until = "highWatermark",
    rules: CompareRules = REPLICAS,
    fs: Fs | None = None,
) -> list[PairComparison]:
    """Compare two log directories, or two partitions' directories; see `pairs` and `compare`.

    A test of replication asserts that ``[str(one) for one in compare_directories(a, b) if not one.is_fine] == []``.
    """
    fs = fs or OsFs()
    found = []
    for pair in pairs(fs, left, right, topics=topics, until=until):
        here = []
        if pair.left is not None and pair.right is not None:
            here = compare(fs, pair.left.side, pair.right.side, pair.first, pair.end, rules)
        found.append(PairComparison(pair, here or missing_whole(pair), rules))
    return found


def missing_whole(pair: PartitionPair) -> list[Comparison]:
    """The finding on a partition that one directory lacks; its records are not counted."""
    one = pair.left or pair.right
    if one is None or (pair.left is not None and pair.right is not None) or one.side.log_start >= one.side.log_end:
        return []
    side = "left" if pair.left is None else "right"
    return [Comparison(RangeKind.MISSING, one.side.log_start, one.side.log_end, 0, side=side, place="end")]


def pairs(
    fs: Fs, left: str, right: str, *, topics: Sequence[str] = (), until: Until = "highWatermark"
) -> Iterator[PartitionPair]:
    """Pair the partitions of two log directories by name; or return one pair if both are partitions' directories.

    The range begins at the lower start of both logs. It ends at the lower high watermark, if files have one
    (``seglog.watermarks`` of a running broker, otherwise ``replication-offset-checkpoint``), or with ``until``
    "logEnd" at the end of the longer log. Raises `InvalidLogDirError` if a path is neither, and `UnknownTopicError`.
    """
    ours, theirs = _partitions(fs, left), _partitions(fs, right)
    if isinstance(ours, PartitionDir) and isinstance(theirs, PartitionDir):
        tops = TopFiles(fs, os.path.dirname(ours.path)), TopFiles(fs, os.path.dirname(theirs.path))
        yield _pair(ours.topic_partition, read_copy(fs, ours, tops[0]), read_copy(fs, theirs, tops[1]), until)
        return
    if isinstance(ours, PartitionDir) or isinstance(theirs, PartitionDir):
        raise InvalidLogDirError(f"{left} and {right}: one is a partition's directory and the other a log directory")
    names = ours.keys() | theirs.keys()
    for topic in topics:
        if all(name.topic != topic for name in names):
            raise UnknownTopicError(f"neither {left} nor {right} has a topic {topic!r}")
    tops = TopFiles(fs, os.path.abspath(left)), TopFiles(fs, os.path.abspath(right))
    for name in sorted(names):
        if not topics or name.topic in topics:
            mine = read_copy(fs, ours[name], tops[0]) if name in ours else None
            its = read_copy(fs, theirs[name], tops[1]) if name in theirs else None
            yield _pair(name, mine, its, until)


def _partitions(fs: Fs, path: str) -> Mapping[TopicPartition, PartitionDir] | PartitionDir:
    absolute = os.path.abspath(path)
    if not fs.exists(absolute) or not fs.stat(os.path.realpath(absolute)).is_dir:
        raise InvalidLogDirError(f"{path}: there is no such directory")
    partition = partition_at(absolute)
    if partition is not None and list_segments(fs, absolute):
        return partition
    found = list_partitions(fs, absolute)
    if not found and META_PROPERTIES not in fs.listdir(absolute):
        raise InvalidLogDirError(f"{path} is neither a log directory nor a partition's")
    return {one.topic_partition: one for one in found}


def read_copy(fs: Fs, partition: PartitionDir, top: TopFiles) -> PartitionCopy:
    """The state of a partition by its files. FileNotFoundError if a broker deletes a segment meanwhile."""
    return PartitionCopy(
        partition.path,
        read_side(fs, partition, top.log_starts),
        top.claimed(partition.topic_partition),
        read_partition_metadata(fs, partition.path),
    )


def read_side(fs: Fs, partition: PartitionDir, log_starts: Mapping[TopicPartition, int]) -> Side:
    """The segments of a partition and their offsets. FileNotFoundError as above."""
    segments = [
        SegmentBytes(one.base_offset, one.log, fs.stat(one.log).size) for one in list_segments(fs, partition.path)
    ]
    first = end = segments[0].base_offset if segments else 0
    if segments:
        try:
            size, end = find_end(fs, segments[-1])
            segments[-1] = segments[-1]._replace(size=size)
        except CorruptError:  # the comparison reports it; offsets before it can be compared
            _, end = find_end(fs, segments[-1], permissive=True)
        except NotRegularFileError:
            end = segments[-1].base_offset
            segments[-1] = segments[-1]._replace(size=0)
    log_start = min(max(log_starts.get(partition.topic_partition, 0), first), end)
    return Side(tuple(segments), log_start, end)


def _pair(name: TopicPartition, left: PartitionCopy | None, right: PartitionCopy | None, until: Until) -> PartitionPair:
    there = [one for one in (left, right) if one is not None]
    first = min(one.side.log_start for one in there)
    end = max(one.side.log_end for one in there)
    marks = [one.high_watermark for one in there if one.high_watermark is not None]
    if until == "highWatermark" and marks and len(there) == 2:
        end = min(end, *marks)
    return PartitionPair(name, left, right, first, max(first, end))
