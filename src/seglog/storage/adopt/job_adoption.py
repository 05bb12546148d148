"""The adoption of a job: checks its parts, plans their places, and makes them part of their logs.

Whatever can refuse a job does so before the manifest is written.
"""

from __future__ import annotations

import errno
import os.path
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Final, NamedTuple

from seglog.core.errors import AdoptError, CorruptBatchError, InvalidRecordError, UnknownTopicError
from seglog.core.types import MAX_INT64, TopicPartition
from seglog.storage.adopt.staging import StagedPart, StagedSegment, check_name
from seglog.storage.directory.adoption import (
    STAGING,
    conclude,
    remove_quietly,
    remove_staging,
    roll_forward,
    stagings,
)
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.formats.adopt_ledger import Ledger, read_ledger, write_ledger
from seglog.storage.formats.adopt_manifest import (
    AdoptItem,
    AdoptManifest,
    AdoptMode,
    Intake,
    PartitionPlan,
    read_manifest,
    write_manifest,
)
from seglog.storage.formats.paths import ADOPT_MANIFEST, OWN_DIRECTORY
from seglog.storage.log.adoption import carry_out
from seglog.storage.log.log import Log
from seglog.storage.log.rebase import rebase

NO_INTAKE: Final = Intake()
_LONGEST_APPLICATION: Final = 512
SMALL_TOTAL: Final = 4
"""Output below ``segment.bytes`` / 4 for a partition is appended, so that many small jobs leave few files."""
SMALL_FILE: Final = 16
"""Of a larger output, files below ``segment.bytes`` / 16 are appended, so that many small tasks leave few files."""


class AdoptResult(NamedTuple):
    """The result of a job: first and next offset of each partition, and the number of records.

    ``already``: the job was adopted before. This call did nothing, and its offsets are no longer known.
    """

    base_offsets: dict[TopicPartition, tuple[int, int]]
    already: bool
    records: int


def adopt(
    directory: LogDir,
    job: str,
    parts: Sequence[StagedPart],
    application: str,
    version: int,
    *,
    allow_foreign: bool = False,
    intake: Intake = NO_INTAKE,
) -> AdoptResult:
    """Make a job's staged records part of their logs; the parts of a partition keep their order.

    The ledger (`seglog.storage.formats.adopt_ledger`) identifies a job by ``application`` and ``version``. If it has
    the job already, its parts are removed. ``allow_foreign``: also adopt into topics that a Kafka broker has made. The
    marks of ``intake`` enter the ledger with the records.

    Raises `AdoptError` if another job has read one of the intake's files meanwhile, or the version was adopted with
    other input; also `UnknownTopicError`, `InvalidRecordError` (compacted topic), `CorruptBatchError`, and the error of
    a partition that did not load. Then no record of the job is visible, and its staging stays. Raises
    `LogDirOfflineError` if the disk fails: open the directory again and retry; the ledger knows whether the job counts.
    """
    check_name(job, "job")
    if not 0 < len(application) <= _LONGEST_APPLICATION or not 0 <= version <= MAX_INT64:
        raise AdoptError(f"application {application[:80]!r} with version {version}: a name and a number from 0 on")
    with directory.changing():
        _finish_unfinished(directory)
        ledger = read_ledger(directory.fs, directory.path)
        if ledger.is_adopted(application, version):
            check_digest(ledger, application, version, intake.digest)
            remove_staging(directory.catalog, job)
            return AdoptResult({}, already=True, records=0)
        if ledger.is_adopted(_through_broker(application), 0):
            raise AdoptError(
                f"{application} has written to {directory.path} through its broker, which knows whether version "
                f"{version} is there: start the broker again"
            )
        for topic in {mark.topic for _, mark in intake.marks}:
            if ledger.open_for(topic) is not None:
                raise AdoptError(
                    f"a job that ended early was committing files to topic {topic} through the broker of "
                    f"{directory.path}, which knows whether they are there: start the broker, and run this job again"
                )
        check_marks(ledger, intake)
        grouped = _by_partition(parts)
        logs = {one: log_of(directory, one, allow_foreign=allow_foreign) for one in grouped}
        with directory.health.guard():
            for partition, log in logs.items():
                _check_parts(directory, job, partition, grouped[partition], log)
            plans = {one: _plan_partition(one, grouped[one], log) for one, log in logs.items()}
            for plan in plans.values():
                _place_files(directory, plan)
        for log in logs.values():
            log.flush(log.log_end_offset)
        with ExitStack() as locks:
            for log in logs.values():  # sorted by partition, as all who take several
                locks.enter_context(log.lock)
            inputs = tuple(mark for _, mark in intake.marks)
            begun = AdoptManifest(job, application, version, (), inputs, intake.digest)
            manifest = _commit(directory, begun, grouped, logs, plans)
            with _committed(directory, job):
                for plan in manifest.partitions:
                    carry_out(logs[plan.topic_partition], directory.path, plan)
        with _committed(directory, job):
            conclude(directory.catalog, manifest, ledger)
        found = {plan.topic_partition: (plan.base, plan.end) for plan in manifest.partitions}
        return AdoptResult(found, already=False, records=sum(end - first for first, end in found.values()))


def note_broker(directory: LogDir, application: str) -> int:
    """Note durably that from now on an application writes through the directory's broker: marks at the broker say
    which of its versions are there (`docs/decisions/0025`). Returns the last version in the ledger, -1 if there is
    none."""
    with directory.changing(), directory.health.guard():
        ledger = read_ledger(directory.fs, directory.path)
        note = _through_broker(application)
        if not ledger.is_adopted(note, 0):
            ledger.note(note, 0)
            write_ledger(directory.fs, directory.path, ledger)
        return ledger.versions.get(application, -1)


def _through_broker(application: str) -> str:
    return f"broker:{application}"


def check_digest(ledger: Ledger, application: str, version: int, digest: str) -> None:
    """Raise `AdoptError` if ``version`` was adopted with an input of another digest."""
    before = ledger.digest_of(application, version)
    if digest and before and before != digest:
        raise AdoptError(
            f"{application} version {version} was adopted with other input: a new input needs a new version"
        )


def check_marks(ledger: Ledger, intake: Intake) -> None:
    """Raise `AdoptError` if the ledger has other marks than the job has seen when it began."""
    for expected, mark in intake.marks:
        if ledger.input(*mark.key) != expected:
            raise AdoptError(
                f"{mark.path} was read into topic {mark.topic} by another job in the meantime: run this one again"
            )


def _finish_unfinished(directory: LogDir) -> None:
    """Finish a job that was interrupted; `AdoptError` if one of its partitions did not load."""
    manifest = read_manifest(directory.fs, directory.path)
    if manifest is None:
        return
    for plan in manifest.partitions:
        reason = directory.refused.get(plan.topic_partition)
        if reason is not None:
            raise AdoptError(
                f"{os.path.join(directory.path, ADOPT_MANIFEST)}: job {manifest.job} is adopted except for "
                f"{plan.topic_partition}, which did not load: {reason}"
            ) from reason
    roll_forward(directory.catalog)


def _commit(
    directory: LogDir,
    manifest: AdoptManifest,
    grouped: dict[TopicPartition, list[StagedPart]],
    logs: dict[TopicPartition, Log],
    plans: dict[TopicPartition, PartitionPlan],
) -> AdoptManifest:
    """Write the manifest. The caller holds the locks: no append may come between a plan's base and its records."""
    with directory.health.guard():
        for partition, log in logs.items():
            plan = _plan_partition(partition, grouped[partition], log)
            if plan != plans[partition]:  # another writer has appended since
                _place_files(directory, plan)
                plans[partition] = plan
            log.flush(log.log_end_offset)
        manifest = manifest._replace(partitions=tuple(plans.values()))
        if manifest.partitions:
            write_manifest(directory.fs, directory.path, manifest)
    return manifest


@contextmanager
def _committed(directory: LogDir, job: str) -> Iterator[None]:
    """Take the directory offline if a committed job stops: the next open must finish it."""
    try:
        with directory.health.guard():
            yield
    except BaseException as error:
        directory.health.failed(
            OSError(errno.EIO, f"job {job} is adopted in part ({error!r}); the next open adopts the rest")
        )
        raise


# Staging


def collect_orphans(directory: LogDir, keep: Collection[str] = ()) -> int:
    """Remove the staging of jobs that are not in ``keep`` and not being adopted; return the number of directories.

    No task should be writing for these jobs. If one still is, because it does not know yet that its driver died, the
    rest is removed the next time.
    """
    removed = 0
    with directory.changing(), directory.health.guard():
        manifest = read_manifest(directory.fs, directory.path)
        kept = {*keep, *([manifest.job] if manifest is not None else [])}
        for staging in stagings(directory.catalog):
            for job in directory.fs.listdir(staging):
                path = os.path.join(staging, job)
                if job not in kept and directory.fs.stat(path).is_dir:
                    remove_quietly(directory.fs, path)
                    removed += 1
    return removed


def remove_job(directory: LogDir, job: str) -> None:
    """Remove the staging of an aborted job, unless the job is being adopted: then it is committed."""
    check_name(job, "job")
    with directory.changing():
        manifest = read_manifest(directory.fs, directory.path)
        if manifest is None or manifest.job != job:
            with directory.health.guard():
                remove_staging(directory.catalog, job)


# Plans


def _by_partition(parts: Sequence[StagedPart]) -> dict[TopicPartition, list[StagedPart]]:
    """The parts that have records, in their order."""
    found: dict[TopicPartition, list[StagedPart]] = {}
    for part in parts:
        if part.segments:
            found.setdefault(part.topic_partition, []).append(part)
    return dict(sorted(found.items()))


def log_of(directory: LogDir, partition: TopicPartition, *, allow_foreign: bool) -> Log:
    """The log for a job's records. Raises the error of a log that did not load, or `AdoptError` for a foreign topic."""
    try:
        log = directory.log(*partition)
    except UnknownTopicError as error:
        raise UnknownTopicError(
            f"{partition} is not in {directory.path}: was the topic deleted since the job began? "
            "Nothing of the job was adopted"
        ) from error
    if partition.topic not in directory.entries and not allow_foreign:
        raise AdoptError(
            f"topic {partition.topic!r} of {directory.path} was made by a Kafka broker: if this is one of several "
            "replicas, they would differ from now on without a warning. If it is the only one, allow it "
            "(allow_foreign), or set the topic's configuration here"
        )
    return log


def _check_parts(directory: LogDir, job: str, partition: TopicPartition, parts: Sequence[StagedPart], log: Log) -> None:
    """Check that the files are those that the tasks have described."""
    home = os.path.join(str(partition), OWN_DIRECTORY, STAGING, job)
    for part in parts:
        if os.path.dirname(part.directory) != home or os.path.basename(part.directory) in ("", ".", ".."):
            raise AdoptError(f"a part of job {job} for {partition} lies in {part.directory!r}, not in {home}/<task>")
        if log.config.compact and not part.keyed:
            raise InvalidRecordError(
                f"{part.directory}: {partition.topic!r} is compacted, and it is not known whether all of these "
                "records have keys: the topic was not compacted when they were staged. Write them again"
            )
        relative = 0
        for segment in part.segments:
            path = os.path.join(directory.path, part.directory, segment.name)
            if segment.relative_base != relative or segment.records <= 0:
                raise AdoptError(f"{path} begins at record {segment.relative_base} of its task, not at {relative}")
            if not directory.fs.exists(path):
                raise AdoptError(
                    f"{path} is missing: was the topic deleted and created again since the job began, or the job's "
                    "staging removed? Nothing of the job was adopted; write it again"
                )
            found = directory.fs.stat(path)
            if not found.is_file or found.size != segment.size:
                raise AdoptError(f"{path} has {found.size} bytes, its task has written {segment.size}")
            relative += segment.records


def _plan_partition(partition: TopicPartition, parts: Sequence[StagedPart], log: Log) -> PartitionPlan:
    """The places of the parts, as long as no other writer appends."""
    segment_bytes = log.config.segment_bytes
    staged = [(part, segment) for part in parts for segment in part.segments]
    small = sum(segment.size for _, segment in staged) * SMALL_TOTAL < segment_bytes

    def mode(segment: StagedSegment) -> AdoptMode:
        return AdoptMode.APPEND if small or segment.size * SMALL_FILE < segment_bytes else AdoptMode.SEGMENT

    items = tuple(
        AdoptItem(os.path.join(part.directory, segment.name), mode(segment), segment.records, segment.size)
        for part, segment in staged
    )
    return PartitionPlan(partition, log.log_end_offset, max(log.epochs.latest, 0), items)


def _place_files(directory: LogDir, plan: PartitionPlan) -> None:
    """Rebase the files that become segments, and fsync all that the manifest will name."""
    fs = directory.fs
    for item, base, _ in plan.placed():
        if item.mode is not AdoptMode.SEGMENT:
            continue
        path = os.path.join(directory.path, item.file)
        with closing(fs.open(path)) as file:
            walked = rebase(file, base, plan.epoch)
            if walked.records != item.records:
                raise CorruptBatchError(f"{walked.records} records but its task has written {item.records}", file=path)
            file.fsync()
    job = os.path.dirname(os.path.dirname(plan.items[0].file))
    for _ in range(4):  # the job, staging, .seglog, the partition: tasks fsync only their own directory
        fs.fsync_dir(os.path.join(directory.path, job))
        job = os.path.dirname(job)
