"""Foreign segments become part of a log, all of a job's or none, once (``seglog.spark``'s commit).

::

    tasks     stage segments, offsets from zero              .seglog/staging/<job>/<task>/     `staging`
    adopt     1 is it in the ledger already?                 seglog.ledger                     `formats.adopt_ledger`
              2 plan, rebase 12 bytes a batch, fsync                                           `planning`, `log.rebase`
              3 write the manifest: from here on it counts   seglog.adopt                      `formats.adopt_manifest`
              4 each partition: append, or rename segments                                     `log.adoption`
              5 note it in the ledger
              6 remove the manifest, then the staging

Before step 3 a crash leaves orphans, which `collect_orphans` takes; from there on `roll_forward`, at the next open,
does the rest. Readers in this process may see one partition of a job before another.
"""

from __future__ import annotations

import errno
import logging
import os.path
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final, NamedTuple

from seglog.core.errors import AdoptError
from seglog.core.types import MAX_INT64, TopicPartition
from seglog.storage.adopt.planning import by_partition, check_parts, log_of, place_files, plan_partition
from seglog.storage.adopt.staging import (
    StagedPart,
    StagedSegment,
    StagingWriter,
    check_name,
    staged_at,
)
from seglog.storage.directory.adoption import conclude, remove_quietly, remove_staging, roll_forward, stagings
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.formats.adopt_ledger import Ledger, read_ledger
from seglog.storage.formats.adopt_manifest import Manifest, PartitionPlan, read_manifest, write_manifest
from seglog.storage.formats.input_marks import InputMark, Intake
from seglog.storage.formats.paths import ADOPT_MANIFEST
from seglog.storage.log.adoption import carry_out
from seglog.storage.log.log import Log

__all__ = [
    "NO_INTAKE",
    "Adopted",
    "InputMark",
    "Intake",
    "Ledger",
    "StagedPart",
    "StagedSegment",
    "StagingWriter",
    "adopt",
    "check_digest",
    "collect_orphans",
    "read_ledger",
    "remove_job",
    "roll_forward",
    "staged_at",
]

NO_INTAKE: Final = Intake()
_LONGEST_APPLICATION: Final = 512
_logger = logging.getLogger("seglog")


class Adopted(NamedTuple):
    """What came of a job: first and next offset of each partition, and how many records.

    ``already``: it had been adopted before, and nothing was done; the offsets are not known any more.
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
) -> Adopted:
    """Make a job's staged records part of their logs: of each partition the parts in their order.

    ``application`` and ``version`` are what it goes by in the ledger (`seglog.storage.formats.adopt_ledger`); parts of
    a job that is there are removed. ``allow_foreign``: also into topics that a Kafka broker has made. The marks of
    ``intake`` come into the ledger with the records; `AdoptError` if another job has read one of its files meanwhile,
    and if the version was adopted with other input.

    Raises `UnknownTopicError`, `AdoptError`, `InvalidRecordError` (compacted topic), `CorruptBatchError`, and what a
    partition is refused for: then nothing of the job is visible, and its staging stays. `LogDirOfflineError` where the
    disk fails: then try again when the directory is opened anew, and the ledger will know.
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
            return Adopted({}, already=True, records=0)
        _check_marks(ledger, intake)
        grouped = by_partition(parts)
        logs = {one: log_of(directory, one, allow_foreign=allow_foreign) for one in grouped}
        with directory.health.guard():
            for partition, log in logs.items():
                check_parts(directory, job, partition, grouped[partition], log)
            plans = {one: plan_partition(one, grouped[one], log) for one, log in logs.items()}
            for plan in plans.values():
                place_files(directory, plan)
        for log in logs.values():
            log.flush(log.log_end_offset)
        with ExitStack() as locks:
            for log in logs.values():  # sorted by partition, as all who take several
                locks.enter_context(log.lock)
            inputs = tuple(mark for _, mark in intake.marks)
            begun = Manifest(job, application, version, (), inputs, intake.digest)
            manifest = _commit(directory, begun, grouped, logs, plans)
            with _committed(directory, job):
                for plan in manifest.partitions:
                    _carry_out(directory, logs[plan.topic_partition], plan)
        with _committed(directory, job):
            conclude(directory.catalog, manifest, ledger)
        found = {plan.topic_partition: (plan.base, plan.end) for plan in manifest.partitions}
        return Adopted(found, already=False, records=sum(end - first for first, end in found.values()))


def check_digest(ledger: Ledger, application: str, version: int, digest: str) -> None:
    """Raise `AdoptError` if ``version`` was adopted with an input of another digest."""
    before = ledger.digest_of(application, version)
    if digest and before and before != digest:
        raise AdoptError(
            f"{application} version {version} was adopted with other input: a new input needs a new version"
        )


def _check_marks(ledger: Ledger, intake: Intake) -> None:
    for expected, mark in intake.marks:
        if ledger.input(*mark.key) != expected:
            raise AdoptError(
                f"{mark.path} was read into topic {mark.topic} by another job meanwhile: run this one again"
            )


def _finish_unfinished(directory: LogDir) -> None:
    """One job at a time: one that could not end, since a partition is refused, goes first."""
    manifest = read_manifest(directory.fs, directory.path)
    if manifest is None:
        return
    for plan in manifest.partitions:
        reason = directory.refused.get(plan.topic_partition)
        if reason is not None:
            raise AdoptError(
                f"{os.path.join(directory.path, ADOPT_MANIFEST)}: job {manifest.job} is adopted but for "
                f"{plan.topic_partition}, which is refused: {reason}"
            ) from reason
    roll_forward(directory.catalog)


def _commit(
    directory: LogDir,
    manifest: Manifest,
    grouped: dict[TopicPartition, list[StagedPart]],
    logs: dict[TopicPartition, Log],
    plans: dict[TopicPartition, PartitionPlan],
) -> Manifest:
    """Write the manifest; with the locks held, for nothing may come between a plan's base and its records."""
    with directory.health.guard():
        for partition, log in logs.items():
            plan = plan_partition(partition, grouped[partition], log)
            if plan != plans[partition]:  # somebody has appended since
                place_files(directory, plan)
                plans[partition] = plan
            log.flush(log.log_end_offset)
        manifest = manifest._replace(partitions=tuple(plans.values()))
        if manifest.partitions:
            write_manifest(directory.fs, directory.path, manifest)
    return manifest


@contextmanager
def _committed(directory: LogDir, job: str) -> Iterator[None]:
    """What is begun must be ended: whatever stops it takes the directory out of use, and the next open goes on."""
    try:
        with directory.health.guard():
            yield
    except BaseException as error:
        directory.health.failed(
            OSError(errno.EIO, f"job {job} is adopted in part ({error!r}); the rest follows at the next open")
        )
        raise


def _carry_out(directory: LogDir, log: Log, plan: PartitionPlan) -> None:
    with log.lock:
        carry_out(log, directory.path, plan)


# Staging


def collect_orphans(directory: LogDir, keep: Collection[str] = ()) -> int:
    """Remove the staging of jobs that are not in ``keep`` and not being adopted; how many directories there were.

    Nobody should be writing for these jobs. Where somebody is, on a machine that has not heard yet that its driver
    died, something stays for the next time.
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
    """Remove what an aborted job has staged, unless it is being adopted: then it is no longer its own to abort."""
    check_name(job, "job")
    with directory.changing():
        manifest = read_manifest(directory.fs, directory.path)
        if manifest is None or manifest.job != job:
            with directory.health.guard():
                remove_staging(directory.catalog, job)
