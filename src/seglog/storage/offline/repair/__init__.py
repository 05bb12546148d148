"""Repair of partitions and log directories: first a plan, then, if it is wanted, the work.

What is derived from the log is made anew; header fields that no CRC covers are set where everything around tells them;
a torn tail is cut off. Records are given up only with ``salvage``, and the plan says which. The files as they were stay
in ``.seglog/backup-…`` of the partition. A crash leaves every file old or new: repair again.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple
from uuid import UUID

from seglog.core.clock import Clock, SystemClock
from seglog.core.config import LogConfig
from seglog.core.errors import InvalidLogDirError
from seglog.core.fs import Fs, OsFs, write_atomically
from seglog.core.types import TopicPartition, parse_topic_partition
from seglog.storage.formats.checkpoints import encode_offsets
from seglog.storage.formats.paths import (
    HIGH_WATERMARKS,
    LIFE,
    LOCK,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    check_holds_no_log_dirs,
    is_log_dir,
    is_partition,
)
from seglog.storage.offline.findings import Severity
from seglog.storage.offline.repair.partition_work import Done, repair_partition
from seglog.storage.offline.repair.plan import PartitionRepair, Step, plan_partition
from seglog.storage.offline.verify.directory_files import OFFSET_FILES, DirState, check_topic_ids, read_dir, topic_ids
from seglog.storage.offline.verify.partition_files import Around

_LINE: Final = re.compile(r"(\S+) (\d{1,10}) (\d{1,18})")


class RepairPlan(NamedTuple):
    """``state`` is the log directory around, None for a partition that is in none; ``steps`` are about its files."""

    path: str
    state: DirState | None
    partitions: Sequence[PartitionRepair]
    steps: Sequence[Step]
    refusals: Sequence[str]

    @property
    def all_steps(self) -> list[Step]:
        """What will be done; nothing of a partition that is refused."""
        return [step for one in self.partitions if not one.refusals for step in one.steps] + list(self.steps)

    @property
    def all_refusals(self) -> list[str]:
        return [reason for one in self.partitions for reason in one.refusals] + list(self.refusals)


@contextmanager
def locked(path: str, *, fs: Fs | None = None) -> Iterator[None]:
    """Hold the log directory that ``path`` is, or is in; `LogDirInUseError` while a Kafka or another of us has it."""
    fs = fs or OsFs()
    absolute = os.path.abspath(path)
    directory = next((one for one in (absolute, os.path.dirname(absolute)) if is_log_dir(fs, one)), None)
    if directory is None:
        yield
        return
    lock = fs.lock(os.path.join(directory, LOCK))
    try:
        yield
    finally:
        lock.release()


def plan_repair(path: str, *, fs: Fs | None = None, salvage: bool = False, keep_log_start: bool = False) -> RepairPlan:
    """What would make ``path``, a log directory or a partition, whole. Changes nothing.

    With ``salvage`` batches that cannot be read are taken out, and the offsets in them are lost. A log that ends below
    its checkpointed start begins at its first segment again, or with ``keep_log_start`` at that start, emptied. Raises
    `InvalidLogDirError` where ``path`` is neither.
    """
    fs = fs or OsFs()
    path = os.path.abspath(path)
    if not fs.stat(path).is_dir:
        raise InvalidLogDirError(f"{path} is a file: a partition or a log directory is repaired as a whole")
    if is_partition(fs, path):
        parent, name = os.path.split(path)
        state = read_dir(fs, parent) if is_log_dir(fs, parent) else None
        return RepairPlan(path, state, [_plan_one(fs, path, state, name, salvage, keep_log_start)], [], [])
    check_holds_no_log_dirs(fs, path)
    state = read_dir(fs, path)
    if not state.partitions and not is_log_dir(fs, path):
        raise InvalidLogDirError(f"{path} is neither a log directory nor a partition's")
    partitions = [
        _plan_one(fs, os.path.join(path, name), state, name, salvage, keep_log_start) for name in state.partitions
    ]
    steps, refusals = [], []
    for finding in state.findings:
        if finding.severity is not Severity.DAMAGE:
            continue
        if os.path.basename(finding.file) in OFFSET_FILES:
            what = f"write it anew from what can be read and from the logs ({finding.reason})"
            if os.path.basename(finding.file) == LOG_START_OFFSETS:
                what += "; records that were deleted and not taken away yet may come back"
            steps.append(Step(finding.file, what))
        else:
            refusals.append(f"{finding.file}: {finding.reason}; this needs a human")
    return RepairPlan(path, state, partitions, steps, refusals)


def _plan_one(
    fs: Fs, path: str, state: DirState | None, name: str, salvage: bool, keep_log_start: bool
) -> PartitionRepair:
    around = state.around(fs, name) if state is not None else Around()
    topic_id = known_topic_id(fs, state, name)
    wrong_id = False
    if state is not None:
        ids = topic_ids(fs, state, name)
        wrong_id = any(os.path.dirname(one.file) == path for one in check_topic_ids(state, ids))
    return plan_partition(
        fs,
        path,
        around,
        topic_id=topic_id,
        wrong_id=wrong_id,
        salvage=salvage,
        keep_log_start=keep_log_start,
    )


def known_topic_id(fs: Fs, state: DirState | None, name: str) -> UUID | None:
    """What our list of topics, or else the other partitions of the topic, say; None if they do not or not alike."""
    partition = parse_topic_partition(name)
    if state is None or partition is None:
        return None
    entry = state.topics.get(partition.topic)
    if entry is not None and entry.topic_id is not None:
        return entry.topic_id
    others = {found for other, found in topic_ids(fs, state, name).items() if other != name and found is not None}
    return others.pop() if len(others) == 1 else None


def carry_out(plan: RepairPlan, *, fs: Fs | None = None, clock: Clock | None = None) -> list[Done]:
    """Do what was planned, but for partitions that are refused; hold the lock meanwhile (`locked`)."""
    fs, clock = fs or OsFs(), clock or SystemClock()
    state = plan.state
    repaired = [one for one in plan.partitions if one.steps and not one.refusals]
    if state is not None:
        _lower(fs, state, repaired)
    done = []
    for one in repaired:
        name = os.path.basename(one.plan.path)
        done.append(repair_partition(fs, clock, one, index_interval=_interval(state, name)))
    if state is not None:
        ends = {one.plan.path: one.end_offset for one in plan.partitions} | {one.path: one.end_offset for one in done}
        _write_checkpoints(fs, clock, plan, state, ends)
    return done


def _interval(state: DirState | None, name: str) -> int:
    partition = parse_topic_partition(name)
    entry = state.topics.get(partition.topic) if state is not None and partition is not None else None
    return LogConfig.from_mapping(entry.config if entry is not None else {}).index_interval_bytes


def _lower(fs: Fs, state: DirState, repaired: Sequence[PartitionRepair]) -> None:
    """Before a log becomes shorter, or is for a moment without its index: nothing of it counts as flushed.

    Nor does a broker of a cluster count as one that has kept everything.
    """
    life = os.path.join(state.path, LIFE)
    if any(one.logs or one.empties for one in repaired) and fs.exists(life):
        fs.unlink(life)
        fs.fsync_dir(state.path)
    for name in (RECOVERY_POINTS, HIGH_WATERMARKS):
        offsets = dict(state.offsets[name])
        for one in repaired:
            partition = parse_topic_partition(os.path.basename(one.plan.path))
            if partition in offsets and one.logs:
                first = one.plan.segments[min(one.logs)].paths.base_offset
                offsets[partition] = min(offsets[partition], first)
        if offsets != state.offsets[name]:
            write_atomically(fs, os.path.join(state.path, name), encode_offsets(offsets))


def _write_checkpoints(fs: Fs, clock: Clock, plan: RepairPlan, state: DirState, ends: dict[str, int]) -> None:
    for name in OFFSET_FILES:
        path = os.path.join(state.path, name)
        is_damaged = any(step.file == path for step in plan.steps)
        offsets = dict(_readable(fs, path) if is_damaged else state.offsets[name])
        for one in plan.partitions:
            partition = parse_topic_partition(os.path.basename(one.plan.path))
            end = ends[one.plan.path]
            if partition is None or one.refusals:
                continue
            if offsets.get(partition, 0) > end:
                if name == LOG_START_OFFSETS:  # or the log would be deleted as a whole
                    del offsets[partition]
                else:
                    offsets[partition] = end
            if name == RECOVERY_POINTS and (partition in offsets or is_damaged):
                flushed = one.plan.segments[-1].paths.base_offset if one.plan.segments else 0
                offsets[partition] = end if state.clean else offsets.get(partition, flushed)
            elif name == HIGH_WATERMARKS and is_damaged and state.clean:
                offsets.setdefault(partition, end)
        if is_damaged:
            fs.write(f"{path}.backup-{clock.now_ms()}", fs.read(path))
        if is_damaged or (fs.exists(path) and fs.read(path) != encode_offsets(offsets)):
            write_atomically(fs, path, encode_offsets(offsets))


def _readable(fs: Fs, path: str) -> dict[TopicPartition, int]:
    """The lines of a damaged checkpoint that can be what they say: of partitions that are here."""
    found: dict[TopicPartition, int] = {}
    for line in fs.read(path).decode(errors="replace").splitlines()[2:]:
        match = _LINE.fullmatch(line)
        partition = parse_topic_partition(f"{match[1]}-{match[2]}") if match is not None else None
        if (
            match is not None
            and partition is not None
            and fs.exists(os.path.join(os.path.dirname(path), str(partition)))
        ):
            found[partition] = int(match[3])
    return found
