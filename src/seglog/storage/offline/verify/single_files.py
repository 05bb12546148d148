"""Checks a single small file by itself."""

from __future__ import annotations

import os.path
from typing import Final

from seglog.core.errors import CorruptError, InvalidLogDirError
from seglog.core.fs import Fs
from seglog.storage.formats.checkpoints import decode_meta_properties
from seglog.storage.formats.paths import (
    CLEAN_SHUTDOWN,
    INDEX,
    LEADER_EPOCHS,
    LOCK,
    LOG,
    MANIFEST,
    META_PROPERTIES,
    PARTITION_METADATA,
    SNAPSHOT,
    TIME_INDEX,
    TOPICS,
    WITNESS,
    parse_file_name,
)
from seglog.storage.formats.topics_file import decode_topics
from seglog.storage.log.manifest import decode_manifest
from seglog.storage.log.producers import decode_snapshot
from seglog.storage.log.transaction_index import decode_aborted
from seglog.storage.offline.findings import Finding, damage
from seglog.storage.offline.verify.directory_state import OFFSET_FILES, read_offset_file
from seglog.storage.offline.verify.index_entries import read_index_entries
from seglog.storage.offline.verify.partition_files import read_epochs, read_topic_id

_BATCHES: Final = (LOG, ".checkpoint")
_UNCHECKED: Final = (CLEAN_SHUTDOWN, LOCK, WITNESS, "quorum-state")
"""Any content of these is legal."""


def check_small_file(fs: Fs, path: str) -> list[Finding] | None:
    """The findings on a file; None if it holds batches. `InvalidLogDirError` if Kafka has no file of this name."""
    name = os.path.basename(path)
    parsed = parse_file_name(name) if name != WITNESS else None
    findings: list[Finding] = []
    if parsed is not None and parsed.kind == LOG:
        return None
    if parsed is None and name.endswith(_BATCHES):
        return None
    try:
        if parsed is not None and parsed.kind in (INDEX, TIME_INDEX):
            data = fs.read(path)
            of_index = parsed.kind == INDEX
            _, findings = read_index_entries(
                data if of_index else None, None if of_index else data, parsed.base_offset, (path, path)
            )
        elif parsed is not None and parsed.kind == SNAPSHOT:
            decode_snapshot(fs.read(path), path)
        elif parsed is not None:
            decode_aborted(fs.read(path), path, base_offset=parsed.base_offset)
        elif name == LEADER_EPOCHS:
            read_epochs(fs, path, findings)
        elif name == PARTITION_METADATA:
            read_topic_id(fs, path, findings)
        elif name in OFFSET_FILES:
            read_offset_file(fs.read(path), path, findings)
        elif name == META_PROPERTIES:
            decode_meta_properties(fs.read(path), path)
        elif name == TOPICS:
            decode_topics(fs.read(path), path)
        elif name == MANIFEST:
            decode_manifest(fs.read(path), path)
        elif name not in _UNCHECKED:
            raise InvalidLogDirError(f"{path}: not a file of Kafka's")
    except CorruptError as error:
        findings.append(damage(path, error.reason, position=error.position))
    return findings
