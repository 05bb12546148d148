"""Staged segments of a job: written under the partition's ``.seglog``, with offsets from zero, for a later adoption.

::

    <topic>-<n>/.seglog/staging/<job>/<task>/00000000000000000000.log .index .timeindex
                                             00000000000000081920.log …

The code of an append (`seglog.storage.log.batch_placement`) checks and converts batches, so an adopted log has the same
batches as an appended one.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

from seglog.core.clock import Clock
from seglog.core.config import LogConfig
from seglog.core.errors import AdoptError, InvalidRecordError, LogClosedError, RecordListTooLargeError
from seglog.core.fs import Fs, remove_tree
from seglog.core.types import Buffer, TopicPartition
from seglog.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader
from seglog.storage.directory.adoption import STAGING
from seglog.storage.formats.paths import LOG, OWN_DIRECTORY, file_name, parse_file_name
from seglog.storage.log.batch_placement import place_all, place_one
from seglog.storage.log.producers import Origin
from seglog.storage.log.retention import should_roll
from seglog.storage.log.segment import Segment, SegmentConfig

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")


class StagedSegment(NamedTuple):
    """A finished segment. Its file's ``name`` is the number of records of the task before it.

    ``size`` is in bytes, ``max_timestamp`` -1 where no record has one.
    """

    name: str
    records: int
    batches: int
    size: int
    max_timestamp: int

    @property
    def relative_base(self) -> int:
        found = parse_file_name(self.name)
        if found is None or found.kind != LOG or found.state:
            raise AdoptError(f"{self.name[:80]!r} is not the name of a staged segment")
        return found.base_offset


class StagedPart(NamedTuple):
    """The output of one task for one partition; ``directory`` is relative to the log directory.

    ``keyed``: every record is known to have a key, as a compacted topic demands.
    """

    topic: str
    partition: int
    directory: str
    segments: tuple[StagedSegment, ...]
    keyed: bool = False

    @classmethod
    def of(
        cls, partition: TopicPartition, directory: str, segments: Sequence[StagedSegment], *, keyed: bool = False
    ) -> Self:
        return cls(partition.topic, partition.partition, directory, tuple(segments), keyed)

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def records(self) -> int:
        return sum(segment.records for segment in self.segments)

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)

    def to_json(self) -> dict[str, object]:
        """An object for ``json.dumps``."""
        return {**self._asdict(), "segments": [list(segment) for segment in self.segments]}

    @classmethod
    def from_json(cls, content: Mapping[str, object]) -> Self:
        """The reverse of `to_json`; `AdoptError` for any other object."""
        try:
            topic, partition, directory = content["topic"], content["partition"], content["directory"]
            segments, keyed = content["segments"], content["keyed"]
            if (
                not isinstance(topic, str)
                or type(partition) is not int
                or not isinstance(directory, str)
                or not isinstance(segments, list)
                or type(keyed) is not bool
            ):
                raise TypeError("a field is of another type")
            return cls(topic, partition, directory, tuple(_segment(fields) for fields in segments), keyed)
        except (KeyError, TypeError, ValueError) as error:
            raise AdoptError(f"not the description of a staged part: {error!r}") from error


def _segment(fields: object) -> StagedSegment:
    if not isinstance(fields, list) or len(fields) != 5:
        raise TypeError("a segment is not a list of five")
    name, *numbers = fields
    if not isinstance(name, str) or any(type(number) is not int for number in numbers):
        raise TypeError("a segment is not a name and four numbers")
    return StagedSegment(name, *numbers)


def check_name(name: str, what: str) -> str:
    """Check a job's or task's name, which becomes a directory; `AdoptError` if it cannot."""
    if not _NAME.fullmatch(name):
        raise AdoptError(f"{what} {name[:140]!r}: 1 to 128 of the characters a-z A-Z 0-9 . _ -, not beginning with '.'")
    return name


def staged_at(partition: TopicPartition, job: str, task: str) -> str:
    """The directory of a task's segments, relative to the log directory. ``task`` must be unique to the attempt.

    >>> staged_at(TopicPartition("web", 3), "job-1", "7-0-c0ffee")
    'web-3/.seglog/staging/job-1/7-0-c0ffee'
    """
    return os.path.join(str(partition), OWN_DIRECTORY, STAGING, check_name(job, "job"), check_name(task, "task"))


class StagingWriter:
    """Writes one task's records for one partition; not for several threads.

    The first record creates the files and their directories below the partition's. Raises `AdoptError` if the partition
    is missing, because the topic was deleted, and OSError if the disk fails; then call `discard`.
    """

    def __init__(self, fs: Fs, clock: Clock, directory: str, config: LogConfig, *, has_keys: bool = False) -> None:
        """``directory`` is the absolute path of `staged_at`, ``config`` the topic's.

        ``has_keys``: the caller has checked that every record has a key. Without it the records of a compacted topic
        are decoded one by one, which costs fifty times as much as everything else here.
        """
        self._fs = fs
        self._clock = clock
        self.directory = directory
        self.keyed = has_keys or config.compact
        self._config = config.with_overrides({"cleanup.policy": "delete"}) if has_keys and config.compact else config
        self._segment_config = SegmentConfig(config.segment_index_bytes, config.index_interval_bytes)
        self._segment: Segment | None = None
        self._batches = 0
        self._done: list[StagedSegment] = []
        self._closed = False
        self.next_offset = 0

    def append(self, data: Buffer) -> None:
        """Append whole batches. Their base offsets are ignored: offsets continue from `next_offset`.

        Raises a subclass of `AppendError`, or `CorruptBatchError`, if an append would, and for batches of a producer
        or transaction, whose state is not adopted. Then no part of ``data`` was written.
        """
        if self._closed:
            raise LogClosedError(f"{self.directory} is finished")
        config, offset, now_ms = self._config, self.next_offset, self._clock.now_ms()
        headers: Sequence[BatchHeader]
        placed = place_one(data, offset, 0, config, Origin.BULK, now_ms)
        if placed is not None:
            out, headers = placed[0], (placed[1],)
        else:
            out, headers = place_all(data, offset, 0, config, Origin.BULK, now_ms)
        for header in headers:
            if header.producer_id >= 0 or header.attributes & (TRANSACTIONAL_BIT | CONTROL_BIT):
                raise InvalidRecordError(
                    "a batch of a producer or transaction cannot be staged: the log would not know its state"
                )
            if header.size > config.segment_bytes:
                raise RecordListTooLargeError(f"a batch of {header.size} bytes; a segment takes {config.segment_bytes}")
        if not self._fits(len(out), headers) and len(headers) > 1:
            position, view = 0, memoryview(out)
            for header in headers:
                self._write(view[position : position + header.size], (header,))
                position += header.size
        else:
            self._write(out, headers)

    def _fits(self, size: int, headers: Sequence[BatchHeader]) -> bool:
        segment = self._segment
        if segment is None:
            return size <= self._config.segment_bytes
        return not should_roll(
            segment.size,
            size,
            segment.base_offset,
            headers[-1].last_offset,
            max(header.max_timestamp for header in headers),
            segment.rolling_timestamp(),
            segment.created_ms,
            segment.is_index_full,
            self._config,
            0,
            self._clock.now_ms,
        )

    def _write(self, data: Buffer, headers: Sequence[BatchHeader]) -> None:
        if self._segment is not None and not self._fits(len(data), headers):
            self._end_segment()
        segment = self._segment or self._begin_segment()
        segment.append(data, headers)
        self._batches += len(headers)
        self.next_offset = headers[-1].last_offset + 1

    def _begin_segment(self) -> Segment:
        if not self._done:
            self._make_directories()
        self._segment = Segment(
            self._fs, self.directory, self.next_offset, self._segment_config, now_ms=self._clock.now_ms(), active=True
        )
        self._batches = 0
        return self._segment

    def _make_directories(self) -> None:
        job = os.path.dirname(self.directory)
        staging = os.path.dirname(job)
        own = os.path.dirname(staging)
        for path in (own, staging, job, self.directory):
            try:
                self._fs.mkdir(path)
            except FileExistsError:  # another task was first
                continue
            except FileNotFoundError as error:
                raise AdoptError(f"{path} cannot be made: the topic was deleted") from error

    def _end_segment(self) -> None:
        segment = self._segment
        if segment is None:
            return
        self._segment = None
        segment.become_inactive()
        records = self.next_offset - segment.base_offset
        name = file_name(segment.base_offset, LOG)
        self._done.append(StagedSegment(name, records, self._batches, segment.size, segment.max_timestamp))
        segment.flush()
        segment.close(write=False)

    def finish(self) -> list[StagedSegment]:
        """Fsync and close the files. Returns [] and leaves no directory if nothing was appended."""
        if not self._closed:
            self._end_segment()
            if self._done:
                self._fs.fsync_dir(self.directory)
            self._closed = True
        return list(self._done)

    def discard(self) -> None:
        """Remove all files, finished or not."""
        self._closed = True
        if self._segment is not None:
            self._segment.close(write=False)
            self._segment = None
        self._done = []
        if self._fs.exists(self.directory):
            remove_tree(self._fs, self.directory)
