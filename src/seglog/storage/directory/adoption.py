"""Finishes a committed adoption (`seglog.storage.adopt`), and removes the staging of jobs.

A job is committed when its manifest is written. If the process ends then, the next opening finishes the job.
"""

from __future__ import annotations

import errno
import logging
import os.path
from collections.abc import Iterator
from typing import Final

from seglog.core.fs import Fs, remove_tree
from seglog.storage.directory.catalog import Catalog
from seglog.storage.formats.adopt_ledger import Ledger, read_ledger, write_ledger
from seglog.storage.formats.adopt_manifest import AdoptManifest, AdoptMode, read_manifest, write_manifest
from seglog.storage.formats.paths import ADOPT_MANIFEST, OWN_DIRECTORY
from seglog.storage.log.adoption import carry_out

STAGING: Final = "staging"
"""The directory in a partition's ``.seglog``; repair has files in it, each job a directory."""
_logger = logging.getLogger("seglog")


def roll_forward(catalog: Catalog) -> None:
    """Finish an interrupted adoption; called when a log directory is opened.

    Parts for a partition that did not load wait until it is repaired; parts for a deleted topic are dropped. Raises
    `InvalidLogDirError` if another program has written to a log meanwhile, `CorruptCheckpointError` if the manifest or
    the ledger cannot be read.
    """
    manifest = read_manifest(catalog.fs, catalog.path)
    if manifest is None:
        return
    ledger = read_ledger(catalog.fs, catalog.path)
    if ledger.is_adopted(manifest.application, manifest.number):
        _remove_manifest(catalog)
        remove_staging(catalog, manifest.job)
        return
    waiting = []
    with catalog.health.guard():
        for plan in manifest.partitions:
            log = catalog.logs.get(plan.topic_partition)
            if log is not None:
                with log.lock:
                    carry_out(log, catalog.path, plan)
            elif plan.topic_partition in catalog.refused:
                waiting.append(plan)
        if not waiting:
            conclude(catalog, manifest, ledger)
        elif len(waiting) < len(manifest.partitions):
            write_manifest(catalog.fs, catalog.path, manifest._replace(partitions=tuple(waiting)))
    for plan in waiting:
        _logger.error("%s did not load and lacks the records of job %s", plan.topic_partition, manifest.job)


def conclude(catalog: Catalog, manifest: AdoptManifest, ledger: Ledger) -> None:
    """Steps 5 and 6. Once the ledger has the job, the manifest is void, also if a crash restores it."""
    fs, path = catalog.fs, catalog.path
    if any(item.mode is AdoptMode.SEGMENT for plan in manifest.partitions for item in plan.items):
        catalog.checkpoints.write_recovery_points()  # or the next start would check segments that are on the disk
    ledger.note(manifest.application, manifest.number)
    ledger.note_inputs(manifest.application, manifest.number, manifest.inputs, manifest.digest)
    write_ledger(fs, path, ledger)
    _remove_manifest(catalog)
    remove_staging(catalog, manifest.job)


def _remove_manifest(catalog: Catalog) -> None:
    path = os.path.join(catalog.path, ADOPT_MANIFEST)
    if catalog.fs.exists(path):
        catalog.fs.unlink(path)


def stagings(catalog: Catalog) -> Iterator[str]:
    for partition in sorted({*catalog.logs, *catalog.refused}):
        path = os.path.join(catalog.path_of(partition), OWN_DIRECTORY, STAGING)
        if catalog.fs.exists(path):
            yield path


def remove_staging(catalog: Catalog, job: str) -> None:
    for staging in stagings(catalog):
        path = os.path.join(staging, job)
        if catalog.fs.exists(path):
            remove_quietly(catalog.fs, path)


def remove_quietly(fs: Fs, path: str) -> None:
    """Delete a job's directory. If an abandoned task still writes there, orphans are left."""
    try:
        remove_tree(fs, path)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
            raise
