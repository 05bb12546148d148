"""The truth about a simulated broker, kept beside it: each partition's records, and the answers that each client got.

The names of properties are those of ``P1 no acknowledged record lost`` and so on:

- P1: what was acknowledged is at its offset, after any crash that it was promised to survive;
- P2: no value of an idempotent producer is at two offsets, and each producer's values keep their order;
- P3: whoever reads an offset reads the same, always;
- P5: the high watermark does not go back, nor does the log's start;
- P9: a group goes on where it had committed last.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Final

from seglog.broker.app import Node
from seglog.coordinators.coordinator_error import CoordinatorError
from seglog.core.types import TopicPartition
from seglog.storage.log import reads
from seglog.storage.log.log import Log
from seglog.storage.log.reads import UpTo
from tests.kit.virtual_loop import World

FOREVER: Final = 1 << 62


class ViolationError(AssertionError):
    """The broker broke a promise."""


def check(holds: bool, what: str) -> None:
    if not holds:
        raise ViolationError(what)


@dataclass(eq=False, slots=True)
class Commit:
    """An OffsetCommit of one partition: when it was sent and answered, in steps of the world."""

    number: int
    offset: int
    sent: int
    done: int = FOREVER
    is_acknowledged: bool = False


class Truth:
    """``is_lossy``: a power cut loses unflushed records, and voids every promise about them."""

    def __init__(self, world: World, *, is_lossy: bool) -> None:
        self.world = world
        self.is_lossy = is_lossy
        self.losses = 0
        self.records: dict[TopicPartition, dict[int, bytes]] = defaultdict(dict)
        self.ends: dict[TopicPartition, int] = defaultdict(int)
        self.flushed: dict[TopicPartition, int] = defaultdict(int)
        self.may_start: dict[TopicPartition, int] = defaultdict(int)
        self.acknowledged = self.read = self.resumed = 0
        self.producer_ids: dict[int, str] = {}
        self.commits: dict[tuple[str, TopicPartition], dict[int, Commit]] = defaultdict(dict)
        self.gave_up: set[bytes] = set()
        self.unordered: set[bytes] = set()
        """Producers whose values may come in any order."""
        self.refused: set[bytes] = set()
        """Values of writes that were denied."""
        self._offset_of: dict[bytes, tuple[TopicPartition, int]] = {}
        self._last_number: dict[tuple[TopicPartition, bytes], int] = {}
        self._marks: dict[TopicPartition, tuple[int, int]] = {}
        self._numbers = 0

    # What the broker has

    def look(self, node: Node, *, groups: bool) -> None:
        """After each step of the broker's."""
        for topic in node.topics:
            if topic.is_internal:
                continue
            for partition in topic.partitions:
                if partition is not None:
                    self._look_at(partition.topic_partition, partition.log)
        if groups:
            self._look_at_groups(node)

    def _look_at(self, name: TopicPartition, log: Log) -> None:
        end, mark = log.log_end_offset, log.high_watermark
        if not self.is_lossy and end > self.ends[name]:  # what is not flushed is neither acknowledged nor read
            end = max(log.flushed_end, self.ends[name])
            check(mark <= end, f"{name} shows offsets up to {mark}, and has flushed those up to {end}")
        before, start = self._marks.get(name, (0, 0))
        if mark != before or log.log_start_offset != start:
            check(mark >= before, f"P5: the high watermark of {name} goes back from {before} to {mark}")
            check(log.log_start_offset >= start, f"P5: the start of {name} goes back from {start}")
            check(log.log_start_offset <= self.may_start[name], f"{name} begins at {log.log_start_offset}: too late")
            self._marks[name] = (mark, log.log_start_offset)
            log.check()
        self.flushed[name] = log.recovery_point
        if end != self.ends[name]:
            check(end > self.ends[name], f"{name} has become shorter: {end}, not {self.ends[name]}")
            for offset, value in values(log, self.ends[name], end).items():
                self._appended(name, offset, value)
            check(list(self.records[name])[-1:] == [end - 1], f"{name} has no record at {end - 1}")
            self.ends[name] = end

    def _appended(self, name: TopicPartition, offset: int, value: bytes) -> None:
        self.records[name][offset] = value
        before = self._offset_of.setdefault(value, (name, offset))
        check(before == (name, offset), f"P2: {value[:20]!r} is at {before} and at {name} {offset}")
        check(value not in self.refused, f"{value[:20]!r} is in {name}, and was denied")
        producer, number, *_ = value.split(b":")
        if producer in self.unordered:
            return
        last = self._last_number.get((name, producer), -1)
        check(int(number) > last, f"P2: {value[:20]!r} comes after number {last} in {name}")
        if not self.is_lossy and producer not in self.gave_up:
            check(int(number) == last + 1, f"P1: {value[:20]!r} comes after number {last} in {name}")
        self._last_number[name, producer] = int(number)

    def _look_at_groups(self, node: Node) -> None:
        for group, place in self.commits:
            try:
                found = node.groups.shard(group).fetch(
                    group, (place.topic, place.partition), None, require_stable=False
                )
            except CoordinatorError:  # not loaded yet
                continue
            self.holds(group, place, found.value.metadata if found.value is not None else "", FOREVER)

    def holds(self, group: str, place: TopicPartition, metadata: str, asked: int) -> None:
        """This commit, or none (""), may be the last one for who ``asked`` in that step: none that had been
        acknowledged by then was sent after its answer."""
        commits = self.commits[group, place]
        done = -1
        if metadata:
            check(int(metadata) in commits, f"P9: {group} has a commit of {place} that nobody sent: {metadata}")
            done = commits[int(metadata)].done
        for commit in commits.values():
            check(
                not commit.is_acknowledged or commit.done > asked or commit.sent <= done,
                f"P9: {group} is back at commit {metadata or 'none'} of {place}, before {commit}",
            )

    # Restarts

    def started(self, node: Node) -> None:
        """The broker answers again: it has what it had, as far as that was promised."""
        check(not node.directories.dirs[0].refused, f"refused: {node.directories.dirs[0].refused}")
        for name in self.ends:
            check(name in node.directories.dirs[0].logs, f"{name} is gone")
            log = node.directories.dirs[0].logs[name]
            found = values(log, log.log_start_offset, log.log_end_offset)
            whole = range(log.log_start_offset, log.log_end_offset)
            check(list(found) == list(whole), f"{name} of {whole} has holes: {sorted({*whole} - found.keys())}")
            known = self.records[name]
            for offset, value in found.items():
                check(known.get(offset, value) == value, f"P3: {name} {offset} was {known.get(offset)!r:.30}")
            check(log.log_end_offset >= self.flushed[name], f"P1: {name} lost what was flushed")
            self._marks[name] = (self._marks.get(name, (0, 0))[0], log.log_start_offset)

    def lost(self, left: str) -> None:
        """The broker is down, and what is left of the disk is "all", or what was "flushed"."""
        if left == "flushed" and self.is_lossy:
            self.losses += 1
            self._marks.clear()
            for commits in self.commits.values():
                for commit in commits.values():
                    commit.is_acknowledged = False

    def cut(self, node: Node) -> None:
        """Before `started`, after a loss: lost records are no longer required of the broker."""
        for name, log in node.directories.dirs[0].logs.items():
            if name not in self.ends or log.log_end_offset >= self.ends[name]:
                continue
            check(log.log_end_offset >= self.flushed[name], f"P1: {name} lost what was flushed")
            for offset in [offset for offset in self.records[name] if offset >= log.log_end_offset]:
                self._offset_of.pop(self.records[name].pop(offset))
            self.ends[name] = log.log_end_offset
            for key in [key for key in self._last_number if key[0] == name]:
                del self._last_number[key]
            for value in self.records[name].values():
                producer, number, *_ = value.split(b":")
                self._last_number[name, producer] = int(number)

    # What clients are told

    def has_acknowledged(self, name: TopicPartition, offset: int, batch: list[bytes], losses: int) -> None:
        if losses != self.losses:
            return  # the answer was on its way when the power was cut
        self.acknowledged += len(batch)
        for number, value in enumerate(batch):
            found = self.records[name].get(offset + number)
            check(found == value, f"P1: {value[:20]!r} is not at {name} {offset + number}, there is {found!r:.30}")

    def refuses(self, value: bytes) -> None:
        """A write was denied, or will be."""
        check(value not in self._offset_of, f"{value[:20]!r} was denied, and is at {self._offset_of.get(value)}")
        self.refused.add(value)

    def has(self, batch: list[bytes]) -> bool:
        """Whether it is in a log."""
        return all(value in self._offset_of for value in batch)

    def has_read(self, name: TopicPartition, offset: int, value: bytes, losses: int) -> None:
        if losses == self.losses:
            self.read += 1
            found = self.records[name].get(offset)
            check(found == value, f"P3: {name} {offset} is read as {value!r:.30}, it is {found!r:.30}")

    def has_id(self, producer_id: int, client: str) -> None:
        before = self.producer_ids.setdefault(producer_id, client)
        check(before == client, f"producer id {producer_id} is of {before} and of {client}")

    def begins_commit(self, group: str, place: TopicPartition, offset: int) -> Commit:
        self._numbers += 1
        commit = Commit(self._numbers, offset, self.world.steps)
        self.commits[group, place][commit.number] = commit
        return commit

    def ends_commit(self, commit: Commit, losses: int) -> None:
        """It was acknowledged; one that was refused, or is not known to be done, has no end."""
        commit.done = self.world.steps
        commit.is_acknowledged = losses == self.losses


def values(log: Log, start: int, end: int) -> dict[int, bytes]:
    """All records of these offsets; also of a log that is out of use."""
    found: dict[int, bytes] = {}
    offset = start
    while offset < end:
        fetched = reads.fetch(log, offset, 1 << 20, UpTo.LOG_END, min_one=True)
        for record in fetched.records():
            if record.offset < end:
                found[record.offset] = record.value or b""
            offset = record.offset + 1
        if not fetched.size:
            break
    return found
