"""Carrying out an adoption that is committed (`seglog.storage.adopt`).

A job counts once its manifest is written: whatever stops the process then, the next opening does the rest.
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
from seglog.storage.formats.adopt_manifest import Manifest, Mode, read_manifest, write_manifest
from seglog.storage.formats.paths import ADOPT_MANIFEST, OWN_DIRECTORY
from seglog.storage.log.adoption import carry_out

STAGING: Final = "staging"
"""In a partition's ``.seglog``; repair has files of its own in it, jobs have directories."""
_logger = logging.getLogger("seglog")


def roll_forward(catalog: Catalog) -> None:
    """Complete what `adopt` had begun when the process ended; called when a log directory is opened.

    What belongs to a refused partition waits until that is repaired; to a deleted topic, is forgotten. Raises
    `InvalidLogDirError` where somebody else has written to a log in between, `CorruptCheckpointError` where the
    manifest or the ledger cannot be read.
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
        _logger.error("%s is refused and lacks what job %s has for it", plan.topic_partition, manifest.job)


def conclude(catalog: Catalog, manifest: Manifest, ledger: Ledger) -> None:
    """Steps 5 and 6. From the ledger on the manifest says nothing any more, also if a crash brings it back."""
    fs, path = catalog.fs, catalog.path
    if any(item.mode is Mode.SEGMENT for plan in manifest.partitions for item in plan.items):
        catalog.checkpoints.write_recovery_points()  # or the next start would check what is on the disk for sure
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
    """Delete a job's catalog. A task that nobody waits for may still be writing there: then orphans are left."""
    try:
        remove_tree(fs, path)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
            raise
