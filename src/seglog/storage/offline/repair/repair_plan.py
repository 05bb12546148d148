"""The plan for the repair of a log directory or a partition, and the work that carries it out."""

from __future__ import annotations

import os.path
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
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
from seglog.storage.offline.repair.partition_repair import (
    PartitionRepair,
    RepairedPartition,
    RepairStep,
    plan_partition,
    repair_partition,
)
from seglog.storage.offline.repair.replica_batches import BatchDonor, find_replica
from seglog.storage.offline.verify.directory_state import (
    OFFSET_FILES,
    DirectoryState,
    check_topic_ids,
    read_directory,
    topic_ids,
)
from seglog.storage.offline.verify.partition_files import PartitionContext

DonorOf = Callable[[str], BatchDonor | None]
"""The replicas that may have the damaged batches of the partition at a directory."""

_LINE: Final = re.compile(r"(\S+) (\d{1,10}) (\d{1,18})")


class RepairPlan(NamedTuple):
    """``state`` is the log directory, None for a partition that lies in none; ``steps`` concern its own files."""

    path: str
    state: DirectoryState | None
    partitions: Sequence[PartitionRepair]
    steps: Sequence[RepairStep]
    refusals: Sequence[str]

    @property
    def all_steps(self) -> list[RepairStep]:
        """All steps, except those of a partition that is refused."""
        return [step for one in self.partitions if not one.refusals for step in one.steps] + list(self.steps)

    @property
    def all_refusals(self) -> list[str]:
        return [reason for one in self.partitions for reason in one.refusals] + list(self.refusals)


@contextmanager
def lock_directory(path: str, *, fs: Fs | None = None) -> Iterator[None]:
    """Lock the log directory that ``path`` is or lies in; `LogDirInUseError` while a Kafka or seglog has it open."""
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


def plan_repair(
    path: str,
    *,
    fs: Fs | None = None,
    salvage: bool = False,
    keep_log_start: bool = False,
    replica: str | None = None,
    donor_of: DonorOf | None = None,
) -> RepairPlan:
    """Plan the repair of ``path``, a log directory or a partition. Changes nothing.

    ``salvage``: remove batches that cannot be read, and lose their offsets. A log that ends below its checkpointed
    start begins at its first segment again, or with ``keep_log_start`` at that start, without records. ``replica`` is
    another replica's partition or log directory, from which damaged batches are restored; or ``donor_of`` returns the
    donor for a partition's directory. Raises `InvalidLogDirError` if ``path`` is neither, or ``replica`` is none of its
    topic.
    """
    fs = fs or OsFs()
    if replica is not None:
        donor_of = partial(find_replica, fs, replica)
    path = os.path.abspath(path)
    if not fs.stat(path).is_dir:
        raise InvalidLogDirError(f"{path} is a file: a partition or a log directory is repaired as a whole")
    if is_partition(fs, path):
        parent, name = os.path.split(path)
        state = read_directory(fs, parent) if is_log_dir(fs, parent) else None
        return RepairPlan(path, state, [_plan_one(fs, path, state, name, salvage, keep_log_start, donor_of)], [], [])
    check_holds_no_log_dirs(fs, path)
    state = read_directory(fs, path)
    if not state.partitions and not is_log_dir(fs, path):
        raise InvalidLogDirError(f"{path} is neither a log directory nor a partition's")
    partitions = [
        _plan_one(fs, os.path.join(path, name), state, name, salvage, keep_log_start, donor_of)
        for name in state.partitions
    ]
    steps, refusals = [], []
    for finding in state.findings:
        if finding.severity is not Severity.DAMAGE:
            continue
        if os.path.basename(finding.file) in OFFSET_FILES:
            what = f"rewrite it from the lines that can be read and from the logs ({finding.reason})"
            if os.path.basename(finding.file) == LOG_START_OFFSETS:
                what += "; records that were deleted and are still in a segment may come back"
            steps.append(RepairStep(finding.file, what))
        else:
            refusals.append(f"{finding.file}: {finding.reason}; repair does not decide this")
    refusals += [
        f"{os.path.join(path, str(partition))} is missing, and its log had records: bring it back, or let the broker "
        "copy it from another replica"
        for partition in state.missing_partitions()
    ]
    return RepairPlan(path, state, partitions, steps, refusals)


def _plan_one(
    fs: Fs,
    path: str,
    state: DirectoryState | None,
    name: str,
    salvage: bool,
    keep_log_start: bool,
    donor_of: DonorOf | None,
) -> PartitionRepair:
    context = state.context(fs, name) if state is not None else PartitionContext()
    topic_id = _known_topic_id(fs, state, name)
    wrong_id = False
    if state is not None:
        ids = topic_ids(fs, state, name)
        wrong_id = any(os.path.dirname(one.file) == path for one in check_topic_ids(state, ids))
    return plan_partition(
        fs,
        path,
        context,
        topic_id=topic_id,
        wrong_id=wrong_id,
        salvage=salvage,
        keep_log_start=keep_log_start,
        replica=donor_of(path) if donor_of is not None else None,
    )


def _known_topic_id(fs: Fs, state: DirectoryState | None, name: str) -> UUID | None:
    """The topic id by ``seglog.topics``, or by the topic's other partitions; None if they have none or several."""
    partition = parse_topic_partition(name)
    if state is None or partition is None:
        return None
    entry = state.topics.get(partition.topic)
    if entry is not None and entry.topic_id is not None:
        return entry.topic_id
    others = {found for other, found in topic_ids(fs, state, name).items() if other != name and found is not None}
    return others.pop() if len(others) == 1 else None


def carry_out(plan: RepairPlan, *, fs: Fs | None = None, clock: Clock | None = None) -> list[RepairedPartition]:
    """Carry out ``plan``, except for partitions that are refused. The caller holds the lock (`lock_directory`)."""
    fs, clock = fs or OsFs(), clock or SystemClock()
    state = plan.state
    repaired = [one for one in plan.partitions if one.steps and not one.refusals]
    if state is not None:
        _lower(fs, state, repaired)
    done = []
    for one in repaired:
        name = os.path.basename(one.files.path)
        done.append(repair_partition(fs, clock, one, index_interval=_interval(state, name)))
    if state is not None:
        ends = {one.files.path: one.end_offset for one in plan.partitions} | {one.path: one.end_offset for one in done}
        _write_checkpoints(fs, clock, plan, state, ends)
    return done


def _interval(state: DirectoryState | None, name: str) -> int:
    partition = parse_topic_partition(name)
    entry = state.topics.get(partition.topic) if state is not None and partition is not None else None
    return LogConfig.from_mapping(entry.config if entry is not None else {}).index_interval_bytes


def _lower(fs: Fs, state: DirectoryState, repaired: Sequence[PartitionRepair]) -> None:
    """Lower the checkpoints before a log becomes shorter or loses its index for a moment.

    Also remove the proof that a broker of a cluster has kept all its records.
    """
    life = os.path.join(state.path, LIFE)
    if any(one.logs or one.empties for one in repaired) and fs.exists(life):
        fs.unlink(life)
        fs.fsync_dir(state.path)
    for name in (RECOVERY_POINTS, HIGH_WATERMARKS):
        offsets = dict(state.offsets[name])
        for one in repaired:
            partition = parse_topic_partition(os.path.basename(one.files.path))
            if partition in offsets and one.logs:
                first = one.files.segments[min(one.logs)].paths.base_offset
                offsets[partition] = min(offsets[partition], first)
        if offsets != state.offsets[name]:
            write_atomically(fs, os.path.join(state.path, name), encode_offsets(offsets))


def _write_checkpoints(fs: Fs, clock: Clock, plan: RepairPlan, state: DirectoryState, ends: dict[str, int]) -> None:
    for name in OFFSET_FILES:
        path = os.path.join(state.path, name)
        is_damaged = any(step.file == path for step in plan.steps)
        offsets = dict(_readable(fs, path) if is_damaged else state.offsets[name])
        for one in plan.partitions:
            partition = parse_topic_partition(os.path.basename(one.files.path))
            end = ends[one.files.path]
            if partition is None or one.refusals:
                continue
            if offsets.get(partition, 0) > end:
                if name == LOG_START_OFFSETS:  # or the log would be deleted as a whole
                    del offsets[partition]
                else:
                    offsets[partition] = end
            if name == RECOVERY_POINTS and (partition in offsets or is_damaged):
                flushed = one.files.segments[-1].paths.base_offset if one.files.segments else 0
                offsets[partition] = end if state.clean else offsets.get(partition, flushed)
            elif name == HIGH_WATERMARKS and is_damaged and state.clean:
                offsets.setdefault(partition, end)
        if is_damaged:
            fs.write(f"{path}.backup-{clock.now_ms()}", fs.read(path))
        if is_damaged or (fs.exists(path) and fs.read(path) != encode_offsets(offsets)):
            write_atomically(fs, path, encode_offsets(offsets))


def _readable(fs: Fs, path: str) -> dict[TopicPartition, int]:
    """The lines of a damaged checkpoint that name partitions of this directory."""
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
