"""`seglog fsck`: the report on the replicas of a cluster, and the plan to repair them from each other."""

from __future__ import annotations

import os.path
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from seglog.core.clock import SystemClock
from seglog.core.errors import InvalidLogDirError, SeglogError
from seglog.core.fs import OsFs
from seglog.core.overlay_fs import OverlayFs
from seglog.core.types import MAX_INT64, NO_EPOCH, TopicPartition
from seglog.storage.log.epochs import LeaderEpochs
from seglog.storage.offline.batch_boundaries import SegmentBytes
from seglog.storage.offline.compare import Comparison, RangeKind, Side, compare, merge
from seglog.storage.offline.findings import Severity
from seglog.storage.offline.fsck.blocks import OffsetRange, differing, excerpt, read_blocks
from seglog.storage.offline.fsck.replica_reads import (
    Answer,
    Answers,
    DirectoryReport,
    ReplicaState,
    find_batches,
    inspect,
    plan,
    read_replica,
    repair,
    try_lock,
)
from seglog.storage.offline.repair import RepairPlan
from seglog.storage.offline.repair.partition_repair import RepairedPartition
from seglog.storage.offline.repair.replica_batches import BatchRequest, ReplicaBytes, TooMuch, agree
from seglog.storage.offline.replica_choice import ReplicaFiles, agreed, choose
from seglog.storage.offline.verify import VerifyReport

_EXCERPT: Final = 8 << 20
_ATTEMPTS: Final = 4
"""How often replicas that differ are compared: a broker may have compacted one of them between two reads."""
_MOST_RANGES: Final = 1000
"""Most ranges of offsets of two replicas whose records are compared."""
_ROUNDS: Final = 8


class Place(NamedTuple):
    """A log directory or a partition; ``host`` is "" if the path names it wherever it is read."""

    path: str
    host: str = ""

    def __str__(self) -> str:
        return f"{self.host}:{self.path}" if self.host else self.path


class PlaceCall(NamedTuple):
    """A function to call where ``place`` is, with its file system before the ``arguments``."""

    place: Place
    function: Callable[..., Any]
    arguments: tuple[Any, ...]


PlaceRunner = Callable[[Sequence[PlaceCall]], Sequence[Any]]
"""Makes calls and returns their results, in order."""


def run_here(calls: Sequence[PlaceCall], progress: Callable[[int], None] | None = None) -> list[Any]:
    """All paths are on this machine. ``progress`` receives how many more bytes of logs were verified."""
    return [call.function(OsFs(), *call.arguments, *([progress] if call.function is inspect else [])) for call in calls]


class Replica(NamedTuple):
    """``name`` is the path of its directory, with the host if one was named."""

    place: Place
    state: ReplicaState

    @property
    def name(self) -> str:
        return str(self.place._replace(path=self.state.path))

    @property
    def files(self) -> ReplicaFiles:
        state = self.state
        claimed = state.committed if state.has_high_watermark else None
        return ReplicaFiles(self.name, state.log_start, state.log_end, claimed, LeaderEpochs(state.epochs))


class Difference(NamedTuple):
    """Replicas differ at offsets from ``first`` to before ``end``, or as a whole if these are the same.

    ``right``: the replicas that are right, for the reason ``why``; none if the files do not tell. A NOTE is legal: it
    needs no repair.
    """

    first: int
    end: int
    what: str
    replicas: tuple[str, ...]
    right: tuple[str, ...]
    why: str
    severity: Severity = Severity.DAMAGE

    def __str__(self) -> str:
        if self.first == self.end:
            return f"{self.what}; {self.why}"
        where = f"offset {self.first}" if self.end - self.first == 1 else f"offsets {self.first} to {self.end - 1}"
        if self.severity is Severity.NOTE:
            return f"{where}: {self.what}"
        verdict = f"right is {', '.join(self.right)} ({self.why})" if self.right else self.why
        return f"{where}: {self.what}; {verdict}"


class PartitionCheck(NamedTuple):
    """The replicas of a partition; ``compared`` is None if there is one only, or if they are not of one topic."""

    partition: TopicPartition
    replicas: Sequence[Replica]
    compared: OffsetRange | None
    differences: Sequence[Difference]

    @property
    def is_damaged(self) -> bool:
        return any(one.severity is Severity.DAMAGE for one in self.differences)


class FsckReport(NamedTuple):
    places: Sequence[tuple[Place, DirectoryReport]]
    partitions: Sequence[PartitionCheck]

    @property
    def is_damaged(self) -> bool:
        return any(one.verified.is_damaged for _, one in self.places) or any(one.is_damaged for one in self.partitions)


def check(
    places: Sequence[Place],
    run: PlaceRunner = run_here,
    *,
    since_manifest: bool = False,
    workers: int | None = None,
) -> FsckReport:
    """Verify log directories or partitions, and compare the replicas of each partition. Changes nothing.

    Brokers may be running. ``since_manifest``: read only segments that are not in a believed ``seglog.manifest``, and
    compare the others by it; this does not find a bit that flipped later. ``workers``: threads or processes for each
    directory. Raises `InvalidLogDirError` if one of ``places`` is none, or if two of them have a partition's
    directory in common, and OSError.
    """
    reports = run([PlaceCall(place, inspect, (place.path, since_manifest, workers)) for place in places])
    by_partition: dict[TopicPartition, list[Replica]] = {}
    named: dict[tuple[str, str], Place] = {}
    for place, report in zip(places, reports, strict=True):
        for state in report.replicas:
            other = named.setdefault((place.host, state.path), place)
            if other != place:
                raise InvalidLogDirError(f"{other} and {place} have the same directory {state.path}: name it once")
            by_partition.setdefault(state.partition, []).append(Replica(place, state))
    checks = [
        _ReplicaComparison(run, partition, replicas, since_manifest=since_manifest).check()
        for partition, replicas in sorted(by_partition.items())
    ]
    return FsckReport(list(zip(places, reports, strict=True)), checks)


class _ReplicaComparison:
    """Compares the replicas of one partition."""

    def __init__(
        self, run: PlaceRunner, partition: TopicPartition, replicas: Sequence[Replica], *, since_manifest: bool
    ) -> None:
        self._run = run
        self._partition = partition
        self._replicas = replicas
        self._since_manifest = since_manifest

    def check(self) -> PartitionCheck:
        if len(self._topic_ids()) > 1:
            found = []
            if self._read_again():  # a broker may have created the topic again between two reads
                names = tuple(one.name for one in self._replicas)
                what = "two topics share this name but have different ids"
                found = [Difference(0, 0, what, names, (), "not compared")]
            if not found or len(self._topic_ids()) > 1:
                return PartitionCheck(self._partition, self._replicas, None, found)
        if len(self._replicas) < 2:
            return PartitionCheck(self._partition, self._replicas, None, [])
        differences = self._differences()
        for _ in range(_ATTEMPTS - 1):
            if not differences:
                break
            if not self._read_again():
                differences = [one for one in differences if one.severity is Severity.NOTE]
                break
            again = {(one.first, one.end, one.what) for one in self._differences()}
            differences = [one for one in differences if (one.first, one.end, one.what) in again]
        ends = [_common(*pair) for pair in self._pairs()]
        compared = OffsetRange(min(one.first for one in ends), max(one.end for one in ends))
        return PartitionCheck(self._partition, self._replicas, compared, differences)

    def _topic_ids(self) -> set[UUID]:
        return {one.state.topic_id for one in self._replicas if one.state.topic_id is not None}

    def _read_again(self) -> bool:
        """Whether all replicas are still there."""
        states = self._run(
            [PlaceCall(one.place, read_replica, (one.state.path, self._since_manifest)) for one in self._replicas]
        )
        if None in states:
            return False
        self._replicas = [Replica(one.place, state) for one, state in zip(self._replicas, states, strict=True)]
        return True

    def _pairs(self) -> list[tuple[Replica, Replica]]:
        """The replica that the others are compared with, and each of the others."""
        first = _chosen(self._replicas)
        return [(first, one) for one in self._replicas if one is not first]

    def _differences(self) -> list[Difference]:
        found: list[Difference] = []
        waiting, within = list(self._replicas), [OffsetRange(0, MAX_INT64)]
        while len(waiting) > 1 and within:  # where the first one is damaged, the others are compared
            left = _chosen(waiting)
            waiting.remove(left)
            damaged: list[OffsetRange] = []
            for right in waiting:
                try:
                    found += self._compare(left, right, within, damaged)
                except FileNotFoundError:  # a broker deleted a segment; the next attempt has its new start
                    found.append(_unread(left, right))
            within = _union(damaged)
        # If the replica that all are compared with is wrong, each pair shows the same.
        return list({(one.first, one.end, one.right or one.replicas): one for one in reversed(found)}.values())[::-1]

    def _compare(
        self, left: Replica, right: Replica, wanted: Sequence[OffsetRange], damaged: list[OffsetRange]
    ) -> Iterator[Difference]:
        """Compare offsets of ``wanted``; add those at which the left one is damaged to ``damaged``."""
        within = _common(left, right)
        ranges = differing(left.state.blocks, right.state.blocks, within)
        ranges = [
            OffsetRange(max(one.first, each.first), min(one.end, each.end))
            for one in ranges
            for each in wanted
            if max(one.first, each.first) < min(one.end, each.end)
        ]
        if self._since_manifest:
            ranges = [one for each in ranges for one in self._narrowed(left, right, each)]
        cuts = sorted({*(start for _, start in left.state.epochs), agreed(left.files, right.files)})
        ranges = [each for one in ranges for each in _split(one, cuts)]
        is_compacted = any(one.state.is_compacted for one in self._replicas)
        findings = (one for each in ranges[:_MOST_RANGES] for one in self._records(left, right, each))
        last: Difference | None = None
        judged = 0
        for one in _adjacent(findings, cuts):
            if one.kind is RangeKind.DAMAGED and one.side == "left":
                damaged.append(OffsetRange(one.first, one.end))
            difference = self._judge(left, right, one, is_compacted=is_compacted)
            if difference is None:
                continue
            judged += 1
            if judged > _MOST_RANGES:
                names = left.name, right.name
                what = f"further records between {names[0]} and {names[1]} are not compared"
                last = difference._replace(end=within.end, what=what, right=(), why="they differ at too many places")
                break
            is_note = last is not None and last.severity is Severity.NOTE
            if last is not None and is_note and last.end == difference.first and last[2:] == difference[2:]:
                last = last._replace(end=difference.end)
                continue
            if last is not None:
                yield last
            last = difference
        if last is not None:
            yield last
        if judged <= _MOST_RANGES < len(ranges):
            rest = OffsetRange(ranges[_MOST_RANGES].first, ranges[-1].end)
            names = left.name, right.name
            what = f"{len(ranges) - _MOST_RANGES} more ranges between {names[0]} and {names[1]} are not compared"
            yield Difference(*rest, what, names, (), "they differ at too many places")

    def _narrowed(self, left: Replica, right: Replica, wanted: OffsetRange) -> list[OffsetRange]:
        """Segments of two replicas may begin at different offsets, and their manifests differ then."""
        calls = [PlaceCall(one.place, read_blocks, (one.state.path, wanted)) for one in (left, right)]
        mine, its = self._run(calls)
        return differing(mine, its, wanted)

    def _records(self, left: Replica, right: Replica, wanted: OffsetRange) -> Iterator[Comparison]:
        """Compare all records with offsets of ``wanted``, some MiB at a time."""
        first = wanted.first
        while first < wanted.end:
            rest = OffsetRange(first, wanted.end)
            calls = [PlaceCall(one.place, excerpt, (one.state.path, rest, _EXCERPT)) for one in (left, right)]
            (mine, mine_end), (its, its_end) = self._run(calls)
            end = min(max(mine_end, first + 1), max(its_end, first + 1), wanted.end)
            yield from compare_excerpts(mine, its, OffsetRange(first, end))
            first = end

    def _judge(self, left: Replica, right: Replica, found: Comparison, *, is_compacted: bool) -> Difference | None:
        names = left.name, right.name
        where = OffsetRange(found.first, found.end)
        if found.kind is RangeKind.DAMAGED and self._since_manifest:  # in a segment that was not verified, it may be
            bad, other = (left, right) if found.side == "left" else (right, left)
            what = f"{bad.name} has a damaged batch"
            return Difference(*where, what, names, (other.name,), "to repair it, check without --since-manifest")
        if found.kind in (RangeKind.SAME, RangeKind.DAMAGED):  # `verify` reports damage
            return None
        if found.kind is RangeKind.LAYOUT:
            if is_compacted or not found.records:
                return None
            what = f"{names[0]} and {names[1]} have the same records in other batches"
            return Difference(*where, what, names, (), "", Severity.NOTE)
        if found.kind is RangeKind.MISSING and is_compacted:
            return None
        if found.first >= agreed(left.files, right.files):
            what = (
                f"{names[1]} has records of a former leader, which no replica in sync has; its broker truncates them "
                f"when it follows the leader of epoch {left.state.epochs[-1][0]}"
            )
            return Difference(*where, what, names, (left.name,), "leader epochs", Severity.NOTE)
        if found.kind is RangeKind.MISSING:
            lacking, having = (left, right) if found.side == "left" else (right, left)
            what = f"{_records(found.records)} missing in {lacking.name}"
            return Difference(*where, what, names, (having.name,), "a sound batch of the right leader epoch")
        what = f"{_records(found.records)} with another {', '.join(found.fields)} in {names[0]} than in {names[1]}"
        return Difference(*where, what, names, *self._right(left, where))

    def _right(self, authority: Replica, where: OffsetRange) -> tuple[tuple[str, ...], str]:
        """The replicas that are right, and why."""
        having = [
            one for one in self._replicas if one.state.log_start <= where.first and where.end <= one.state.committed
        ]
        blocks = self._run([PlaceCall(one.place, read_blocks, (one.state.path, where)) for one in having])
        expected = LeaderEpochs(authority.state.epochs).epoch_for_offset(where.first)
        of_epoch = [max((each.epoch for each in one), default=NO_EPOCH) == expected for one in blocks]
        names = [one.name for one in having]
        if any(of_epoch) and not all(of_epoch):
            right = tuple(name for name, is_right in zip(names, of_epoch, strict=True) if is_right)
            return right, f"leader epoch {expected}"
        digests = [tuple(each.digest for each in one) for one in blocks]
        (common, most), *_ = Counter(digests).most_common(1)
        if most > len(having) / 2 and most > 1:
            right = tuple(name for name, digest in zip(names, digests, strict=True) if digest == common)
            return right, f"{most} of {len(having)} replicas have the same"
        return (), "CRCs and leader epochs are right in each: the files do not tell which is right"


def _chosen(replicas: Sequence[Replica]) -> Replica:
    name = choose([one.files for one in replicas]).replica.directory
    return next(one for one in replicas if one.name == name)


def _split(wanted: OffsetRange, cuts: Iterable[int]) -> Iterator[OffsetRange]:
    """
    >>> list(_split(OffsetRange(2, 9), [0, 2, 5, 9]))
    [OffsetRange(first=2, end=5), OffsetRange(first=5, end=9)]
    """
    first = wanted.first
    for cut in cuts:
        if first < cut < wanted.end:
            yield OffsetRange(first, cut)
            first = cut
    yield OffsetRange(first, wanted.end)


def _adjacent(findings: Iterable[Comparison], cuts: Container[int]) -> Iterator[Comparison]:
    """Merge findings that are alike if one begins where the other ends, and not at one of ``cuts``."""
    last: Comparison | None = None
    for one in findings:
        if last is not None and last.end == one.first and one.first not in cuts and last.is_like(one):
            (last,) = merge((last, one))
            continue
        if last is not None:
            yield last
        last = one
    if last is not None:
        yield last


def _union(ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
    """
    >>> _union([OffsetRange(5, 9), OffsetRange(0, 6), OffsetRange(10, 11)])
    [OffsetRange(first=0, end=9), OffsetRange(first=10, end=11)]
    """
    found: list[OffsetRange] = []
    for one in sorted(ranges):
        if found and one.first <= found[-1].end:
            found[-1] = OffsetRange(found[-1].first, max(found[-1].end, one.end))
        else:
            found.append(one)
    return found


def _common(left: Replica, right: Replica) -> OffsetRange:
    """The offsets that both have, and that are committed in both."""
    first = max(left.state.log_start, right.state.log_start)
    return OffsetRange(first, max(first, min(left.state.committed, right.state.committed)))


def _unread(left: Replica, right: Replica) -> Difference:
    names = left.name, right.name
    within = _common(left, right)
    what = f"{names[0]} and {names[1]} were not compared: their files kept changing"
    return Difference(*within, what, names, (), "", Severity.NOTE)


def _records(number: int) -> str:
    return f"{number} record{'' if number == 1 else 's'}"


def compare_excerpts(left: bytes, right: bytes, within: OffsetRange) -> list[Comparison]:
    """Compare the batches of two replicas, each with an offset of ``within``."""
    fs = OverlayFs(OsFs(), SystemClock())
    sides = []
    for name, data in (("left", left), ("right", right)):
        path = os.path.join(os.sep, f"{name} excerpt.log")
        fs.write(path, data)
        sides.append(Side((SegmentBytes(within.first, path, len(data)),), *within))
    return compare(fs, sides[0], sides[1], *within)


# Repair


class PlannedRepair(NamedTuple):
    """The plan for a log directory or a partition, with the batches that other replicas gave."""

    place: Place
    plan: RepairPlan
    answers: Answers


def plan_repairs(report: FsckReport, run: PlaceRunner = run_here) -> list[PlannedRepair]:
    """Plan the repair of all that is damaged. Changes nothing."""
    planned = []
    for place, directory in report.places:
        for path in _damaged(directory):
            target = place._replace(path=path)
            answers: dict[tuple[str, BatchRequest], Answer] = {}
            for _ in range(_ROUNDS):
                ((made, asked),) = run([PlaceCall(target, plan, (path, answers))])
                if not asked:
                    break
                for name, request in asked:
                    answers[name, request] = _answer(report, place, name, request, run)
            planned.append(PlannedRepair(target, made, answers))
    return planned


def _damaged(directory: DirectoryReport) -> list[str]:
    """The partitions with damage; or the whole directory if a file of its own is damaged."""
    partitions = {one.path for one in directory.replicas}
    found = []
    for finding in directory.verified.findings:
        if finding.severity is Severity.DAMAGE:
            path = os.path.dirname(finding.file)
            if path not in partitions and finding.file not in partitions:
                return [directory.path]
            found.append(path if path in partitions else finding.file)
    return sorted(set(found))


def _answer(report: FsckReport, place: Place, name: str, request: BatchRequest, run: PlaceRunner) -> Answer:
    """The batches on which all other replicas of the partition agree."""
    calls = [
        PlaceCall(replica.place, find_batches, (replica.state.path, request))
        for one in report.partitions
        if str(one.partition) == name and one.compared is not None
        for replica in one.replicas
        if replica.place != place
    ]
    made = run(calls)
    for one in made:
        if isinstance(one, TooMuch):
            return one
    found = zip(calls, made, strict=True)
    return agree(
        request,
        [
            one._replace(file=str(call.place._replace(path=one.file)))
            for call, one in found
            if isinstance(one, ReplicaBytes)
        ],
    )


class RepairStoppedError(SeglogError):
    """A repair failed after others were carried out."""


def carry_out_repairs(planned: Sequence[PlannedRepair], run: PlaceRunner = run_here) -> list[RepairedPartition]:
    """Repair, one directory after the other.

    Changes nothing and raises `LogDirInUseError` if a broker runs on one of them. Stops at one that needs another
    repair than the planned one (`PlanChangedError`), or that fails. `RepairStoppedError` if others were repaired
    before.
    """
    waiting = [one for one in planned if one.plan.all_steps]
    if waiting:
        run([PlaceCall(one.place, try_lock, (one.place.path,)) for one in waiting])
    done: list[RepairedPartition] = []
    changed: list[str] = []
    for one in waiting:
        try:
            (repaired,) = run([PlaceCall(one.place, repair, (one.place.path, one.answers, one.plan.all_steps))])
        except (SeglogError, OSError) as error:
            if not changed:
                raise
            raise RepairStoppedError(f"{error}; repaired before that: {', '.join(changed)}") from error
        done += repaired
        backups = [str(one.place._replace(path=each.backup)) for each in repaired if each.backup is not None]
        changed.append(f"{one.place} (the originals are in {', '.join(backups)})" if backups else str(one.place))
    return done


def total(report: FsckReport) -> VerifyReport:
    """The sum of all places; files are named with their host."""
    found = VerifyReport([], 0, 0, 0, 0, 0)
    for place, directory in report.places:
        one = directory.verified
        findings = [each._replace(file=str(place._replace(path=each.file))) for each in one.findings]
        found = VerifyReport(
            found.findings + findings,
            found.partitions + one.partitions,
            found.segments + one.segments,
            found.bytes + one.bytes,
            found.batches + one.batches,
            found.records + one.records,
        )
    return found
