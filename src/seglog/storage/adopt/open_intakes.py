"""Files that a job reads into a directory which a broker has open.

The job's transaction decides whether its records count, the ledger has the marks of files. So that both agree after any
failure, the marks are in the ledger before the transaction ends, as an open intake. It ends when it is known whether
the transaction has committed (`seglog.spark.write.directories.broker_client`).
"""

from __future__ import annotations

from seglog.core.errors import AdoptError
from seglog.storage.adopt.job_adoption import check_marks
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.formats.adopt_ledger import OpenIntake, read_ledger, write_ledger
from seglog.storage.formats.adopt_manifest import Intake


def begin_intake(directory: LogDir, job: str, application: str, version: int, intake: Intake) -> None:
    """Note durably that ``job`` is about to commit these files.

    Raises `AdoptError` if another job has read one of them since the job began, or is about to commit files to the same
    topic.
    """
    with directory.changing(), directory.health.guard():
        ledger = read_ledger(directory.fs, directory.path)
        check_marks(ledger, intake)
        marks = tuple(mark for _, mark in intake.marks)
        begun = OpenIntake(job, directory.clock.now_ms(), application, version, marks, intake.digest)
        for topic in begun.topics:
            other = ledger.open_for(topic)
            if other is not None and other.job != job:
                raise AdoptError(f"another job commits files to topic {topic} now: run this one again")
        ledger.begin_intake(begun)
        write_ledger(directory.fs, directory.path, ledger)


def end_intake(directory: LogDir, job: str, *, committed: bool) -> None:
    """Make the job's marks count, or drop them. May be repeated."""
    with directory.changing(), directory.health.guard():
        ledger = read_ledger(directory.fs, directory.path)
        if job in {intake.job for intake in ledger.open_intakes}:
            ledger.end_intake(job, committed=committed)
            write_ledger(directory.fs, directory.path, ledger)
