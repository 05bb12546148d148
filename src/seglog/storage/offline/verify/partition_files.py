"""The files of a partition's directory: names and sizes, small files and indexes as read, before any log is read."""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import zip_longest
from typing import Final, NamedTuple
from uuid import UUID

from seglog.core.errors import CorruptCheckpointError
from seglog.core.fs import Fs, NotRegularFileError
from seglog.core.types import MAX_INT32
from seglog.records.compression import DEFAULT_LIMIT
from seglog.storage.formats.checkpoints import (
    decode_epochs,
    decode_partition_metadata,
    encode_epochs,
    encode_partition_metadata,
)
from seglog.storage.formats.paths import (
    LEADER_EPOCHS,
    LOG,
    MANIFEST,
    OWN_DIRECTORY,
    PARTITION_METADATA,
    SNAPSHOT,
    WITNESS,
    SegmentFile,
    SegmentPaths,
    parse_file_name,
    segment_paths,
)
from seglog.storage.log.epochs import LeaderEpochs
from seglog.storage.log.index import OFFSET_ENTRY, TIME_ENTRY
from seglog.storage.log.manifest import SealedSegment
from seglog.storage.offline.findings import Finding, damage, note
from seglog.storage.offline.verify.index_entries import IndexEntries, read_index_entries, slots_at
from seglog.storage.offline.verify.manifests import missing, read_sealed
from seglog.storage.offline.verify.producers import SnapshotFile
from seglog.storage.offline.verify.summary import Facts

STRETCH: Final = 64 << 20
"""Bytes of a log that one thread or process checks at a time."""
_KRAFT_SNAPSHOT: Final = re.compile(r"\d{20}-\d{10}\.checkpoint")
_KRAFT_NAMES: Final = ("quorum-state",)


class PartitionContext(NamedTuple):
    """The log directory's entries for a partition; None if it does not know, or there is no log directory.

    ``clean``: it was shut down cleanly and not opened since. ``recent``: no Kafka before 4.0 has written here.
    ``was_cleaned``: the partition may have been compacted.
    """

    clean: bool | None = None
    recovery_point: int | None = None
    log_start: int | None = None
    high_watermark: int | None = None
    recent: bool = False
    was_cleaned: bool | None = None


class SegmentLog(NamedTuple):
    """A segment's log; all its offsets are below ``limit_offset``."""

    paths: SegmentPaths
    size: int
    limit_offset: int


class PartitionFiles(NamedTuple):
    """The files of a partition. ``findings`` are those that need no log.

    ``is_open``: the indexes of the last segment have room to grow, so the log is in use or was not closed.
    ``batch_files``: KRaft's snapshots, which hold batches too. ``sealed``: the manifest, by base offset.
    """

    path: str
    context: PartitionContext
    segments: Sequence[SegmentLog]
    is_open: bool
    epochs: LeaderEpochs | None
    snapshots: Sequence[SnapshotFile]
    topic_id: UUID | None
    batch_files: Sequence[str]
    findings: Sequence[Finding]
    limit: int
    sealed: Mapping[int, SealedSegment] = {}

    @property
    def is_at_rest(self) -> bool:
        """Whether the log was closed for certain: then nothing may be missing."""
        return not self.is_open and self.context.clean is not False


class LogStretch(NamedTuple):
    """A part of a log: a batch should start at ``start``, and ``end`` is where the next stretch starts."""

    facts: Facts
    start: int
    end: int


def read_partition(fs: Fs, path: str, context: PartitionContext, *, limit: int = DEFAULT_LIMIT) -> PartitionFiles:
    """Read everything but logs and indexes. ``limit``: most bytes that a batch may decompress to."""
    findings: list[Finding] = []
    names = list(_regular(fs, path, findings))
    parsed = {name: file for name in names if (file := parse_file_name(name))}
    findings += _strays(path, names, parsed)
    epochs = read_epochs(fs, os.path.join(path, LEADER_EPOCHS), findings) if LEADER_EPOCHS in names else None
    topic_id = None
    if PARTITION_METADATA in names:
        topic_id = read_topic_id(fs, os.path.join(path, PARTITION_METADATA), findings)
    bases = sorted(file.base_offset for file in parsed.values() if file.kind == LOG and not file.state)
    segments = []
    for base, following in zip_longest(bases, bases[1:]):
        paths = segment_paths(path, base)
        limit_offset = base + MAX_INT32 + 1
        if following is not None:
            limit_offset = min(limit_offset, following)
        segments.append(SegmentLog(paths, fs.stat(paths.log).size, limit_offset))
    sealed = read_sealed(fs, path, names, findings, clean=bool(context.clean))
    findings += missing(path, sealed, bases, context.log_start or 0)
    return PartitionFiles(
        path,
        context,
        segments,
        bool(segments) and _has_room(fs, segments[-1].paths),
        epochs,
        _read_snapshots(fs, path, parsed),
        topic_id,
        [os.path.join(path, name) for name in names if _KRAFT_SNAPSHOT.fullmatch(name)],
        findings,
        limit,
        sealed,
    )


def read_facts(fs: Fs, files: PartitionFiles, at: int) -> tuple[Facts, list[Finding]]:
    """Read the index files of segment ``at``, which may be large, and collect what else is known of it."""
    segment = files.segments[at]
    paths = segment.paths
    findings: list[Finding] = []
    is_empty_and_active = segment.size == 0 and at + 1 == len(files.segments)
    index = read_indexes(fs, paths, findings, required=not is_empty_and_active)
    if index.open_tail:
        if files.context.clean:
            reason = "zeros behind the entries, in a log directory that was shut down cleanly"
            findings.append(damage(paths.offset_index, reason))
        elif at + 1 < len(files.segments):
            make = note if files.is_open else damage
            findings.append(make(paths.offset_index, "zeros behind the entries, in a segment that is not the last"))
    starts = [entry.start_offset for entry in files.epochs.entries[1:]] if files.epochs is not None else []
    facts = Facts(
        paths.log,
        index,
        epoch_starts=starts,
        cuts=[snapshot.offset for snapshot in files.snapshots],
        base_offset=paths.base_offset,
        limit_offset=segment.limit_offset,
        limit=files.limit,
    )
    return facts, findings


def read_indexes(fs: Fs, paths: SegmentPaths, findings: list[Finding], *, required: bool) -> IndexEntries:
    """Read both index files of a segment; a missing one is a finding if it is ``required``.

    Kafka makes the indexes of an active segment at their first use: an empty segment may have none.
    """
    data: list[bytes | None] = []
    for file in (paths.offset_index, paths.timeindex):
        try:
            data.append(fs.read(file))
        except FileNotFoundError:
            data.append(None)
            if required:
                findings.append(damage(file, "the file is missing"))
        except NotRegularFileError:
            data.append(None)
    index, wrong = read_index_entries(data[0], data[1], paths.base_offset, (paths.offset_index, paths.timeindex))
    findings += wrong
    return index


def stretches(facts: Facts, size: int) -> list[LogStretch]:
    """Cut a log where its index says that a batch starts. The walk shows whether one does."""
    positions = facts.index_entries.positions
    cuts = [0]
    for at in slots_at(facts.index_entries, STRETCH, size - STRETCH // 2):
        if positions[at] - cuts[-1] >= STRETCH:
            cuts.append(positions[at])
    return [LogStretch(facts, start, end) for start, end in zip(cuts, [*cuts[1:], size], strict=True)]


def _has_room(fs: Fs, paths: SegmentPaths) -> bool:
    """Whether an index ends in an entry of zeros. A trimmed one does not (except for a single record at time 0)."""
    for path, size in ((paths.offset_index, OFFSET_ENTRY.size), (paths.timeindex, TIME_ENTRY.size)):
        if not fs.exists(path) or not fs.stat(path).is_file:
            continue
        with closing(fs.open(path, write=False)) as file:
            length = file.size()
            if length >= size and not any(file.pread(size, length - size)) and length != TIME_ENTRY.size:
                return True
    return False


def _read_snapshots(fs: Fs, path: str, parsed: Mapping[str, SegmentFile]) -> list[SnapshotFile]:
    return [
        SnapshotFile(file.base_offset, os.path.join(path, name), fs.read(os.path.join(path, name)))
        for name, file in sorted(parsed.items())
        if file.kind == SNAPSHOT and not file.state
    ]


def _regular(fs: Fs, path: str, findings: list[Finding]) -> Iterator[str]:
    """The names in a partition's directory. FIFOs, sockets and devices become findings and are never opened."""
    for name in fs.listdir(path):
        where = os.path.join(path, name)
        try:
            found = fs.stat(where)
        except FileNotFoundError:  # as files of a log in use do
            yield name
            continue
        if found.is_file or found.is_symlink or (found.is_dir and parse_file_name(name) is None):
            yield name
        elif parse_file_name(name) is not None or name in (LEADER_EPOCHS, PARTITION_METADATA):
            findings.append(damage(where, "not a regular file"))
        else:
            findings.append(note(where, "not a regular file, and not one of Kafka's names"))


def _strays(path: str, names: Sequence[str], parsed: Mapping[str, SegmentFile]) -> Iterator[Finding]:
    logs = {file.base_offset for file in parsed.values() if file.kind == LOG and not file.state}
    for name in names:
        if name in (MANIFEST, WITNESS):
            continue
        where = os.path.join(path, name)
        file = parsed.get(name)
        if file is not None:
            if file.state:
                yield note(where, f"{file.state[1:]}: Kafka removes it when it loads the partition")
            elif file.kind not in (LOG, SNAPSHOT) and file.base_offset not in logs:
                yield note(where, "an index without a log: Kafka removes it when it loads the partition")
        elif name.endswith(".tmp"):
            yield note(where, "left over from the replacement of a file")
        elif name not in (LEADER_EPOCHS, PARTITION_METADATA, OWN_DIRECTORY, *_KRAFT_NAMES) and not (
            _KRAFT_SNAPSHOT.fullmatch(name)
        ):
            yield note(where, "not a file of Kafka's")


def read_epochs(fs: Fs, file: str, findings: list[Finding]) -> LeaderEpochs | None:
    """None if there is no file, or if it cannot be read, which is a finding."""
    try:
        data = fs.read(file)
        epochs = LeaderEpochs(decode_epochs(data, file))
    except FileNotFoundError:
        return None
    except NotRegularFileError as error:
        findings.append(damage(file, str(error.strerror)))
        return None
    except CorruptCheckpointError as error:
        findings.append(damage(file, error.reason, position=error.position))
        return None
    if data and encode_epochs(epochs.entries) != data:
        findings.append(damage(file, "epochs or offsets do not rise, or the text is not as Kafka writes it"))
    return epochs


def read_topic_id(fs: Fs, file: str, findings: list[Finding]) -> UUID | None:
    """The id in ``partition.metadata``; None if there is no file, or if it cannot be read, which is a finding."""
    try:
        data = fs.read(file)
        topic_id = decode_partition_metadata(data, file)
    except FileNotFoundError:
        return None
    except NotRegularFileError as error:
        findings.append(damage(file, str(error.strerror)))
        return None
    except CorruptCheckpointError as error:
        findings.append(damage(file, error.reason, position=error.position))
        return None
    if encode_partition_metadata(topic_id) != data:
        findings.append(damage(file, "the text is not as Kafka writes it"))
    return topic_id
