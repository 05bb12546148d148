"""Adopts segments that a job has written elsewhere (``seglog.spark``): all of the job or none, and only once.

::

    tasks     stage segments, offsets from zero              .seglog/staging/<job>/<task>/     `staging`
    adopt     1 check the ledger: is the job in it?          seglog.ledger                     `formats.adopt_ledger`
              2 plan, rebase 12 bytes a batch, fsync                                           `log.rebase`
              3 write the manifest: the job is committed     seglog.adopt                      `formats.adopt_manifest`
              4 each partition: append, or rename segments                                     `log.adoption`
              5 add the job to the ledger
              6 remove the manifest, then the staging

A crash before step 3 leaves orphans, which `collect_orphans` removes. After it, `roll_forward` finishes the job at the
next open. Readers in this process may see one partition of a job before another.
"""

from seglog.storage.adopt.job_adoption import (
    NO_INTAKE,
    AdoptResult,
    adopt,
    check_digest,
    collect_orphans,
    note_broker,
    remove_job,
)
from seglog.storage.adopt.open_intakes import begin_intake, end_intake
from seglog.storage.adopt.staging import StagedPart, StagedSegment, StagingWriter, staged_at
from seglog.storage.formats.adopt_ledger import Ledger, OpenIntake, read_ledger
from seglog.storage.formats.adopt_manifest import InputMark, Intake

__all__ = [
    "NO_INTAKE",
    "AdoptResult",
    "InputMark",
    "Intake",
    "Ledger",
    "OpenIntake",
    "StagedPart",
    "StagedSegment",
    "StagingWriter",
    "adopt",
    "begin_intake",
    "check_digest",
    "collect_orphans",
    "end_intake",
    "note_broker",
    "read_ledger",
    "remove_job",
    "staged_at",
]
