"""The state of a log directory by its own files: checkpoints, topics, marker of a clean shutdown."""

from __future__ import annotations

import os.path
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from seglog.core.errors import CorruptCheckpointError, CorruptError
from seglog.core.fs import Fs, NotRegularFileError
from seglog.core.topic_names import METADATA_TOPIC
from seglog.core.types import TopicPartition, parse_topic_partition
from seglog.records import any_magic
from seglog.records.batch import entries
from seglog.storage.directory.contents import is_aside_of
from seglog.storage.formats.adopt_ledger import decode_ledger
from seglog.storage.formats.adopt_manifest import decode_manifest
from seglog.storage.formats.checkpoints import (
    decode_meta_properties,
    decode_offsets,
    encode_id,
    encode_offsets,
    read_clean_shutdown,
)
from seglog.storage.formats.life_file import read_life
from seglog.storage.formats.paths import (
    ADOPT_MANIFEST,
    CLEAN_SHUTDOWN,
    CLEANER_OFFSETS,
    CLUSTER_MARK,
    FORMER_STORE_FILES,
    HIGH_WATERMARKS,
    LEDGER,
    LIFE,
    LOCK,
    LOG_START_OFFSETS,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    RESERVE,
    SOCKET,
    STORE,
    TOPICS,
    SegmentPaths,
    is_set_aside,
    list_segments,
)
from seglog.storage.formats.topics_file import TopicEntry, decode_topics
from seglog.storage.formats.watermarks import WATERMARKS
from seglog.storage.offline.findings import Finding, damage, note
from seglog.storage.offline.verify.partition_files import PartitionContext, read_topic_id

OFFSET_FILES: Final = (RECOVERY_POINTS, LOG_START_OFFSETS, HIGH_WATERMARKS, CLEANER_OFFSETS)
BOOTSTRAP: Final = "bootstrap.checkpoint"
_OURS: Final = (
    TOPICS,
    ADOPT_MANIFEST,
    CLUSTER_MARK,
    LEDGER,
    LIFE,
    RESERVE,
    SOCKET,
    WATERMARKS,
    STORE,
    *FORMER_STORE_FILES,
)
_FILES: Final = (*OFFSET_FILES, META_PROPERTIES, CLEAN_SHUTDOWN, LOCK, BOOTSTRAP, *_OURS)
_DIRECTORIES: Final = ("remote-log-index-cache",)
_METADATA_VERSION: Final = re.compile(rb"\x01\x0c\x00\x11metadata\.version(..)", re.DOTALL)
"""A ``FeatureLevelRecord``: frame 1, key 12, version 0, name, level."""
_FIRST_OF_4_0: Final = 22
_BACKUP: Final = re.compile(r".+\.backup-\d+")
"""A checkpoint that `seglog repair` has replaced."""
_T = TypeVar("_T")


class DirectoryState(NamedTuple):
    """The contents of a log directory's own files. ``partitions`` are names of directories.

    ``recent``: Kafka 4.0 or later formatted it.
    """

    path: str
    clean: bool
    recent: bool
    offsets: Mapping[str, Mapping[TopicPartition, int]]
    topics: Mapping[str, TopicEntry]
    partitions: Sequence[str]
    findings: Sequence[Finding]

    def missing_partitions(self) -> list[TopicPartition]:
        """Partitions of seglog's topics without a directory, whose logs had records by the checkpoints: a start refuses
        them (`seglog.storage.directory.catalog`)."""
        told = (*self.offsets[RECOVERY_POINTS].items(), *self.offsets[HIGH_WATERMARKS].items())
        had_data = {partition for partition, offset in told if offset > 0 and partition.topic in self.topics}
        return sorted(
            partition
            for partition in had_data
            if str(partition) not in self.partitions
            and not any(is_aside_of(name, partition) for name in self.partitions)
        )

    def context(self, fs: Fs, name: str) -> PartitionContext:
        """The directory's state of a partition. Checkpoints and the clean marker do not count for KRaft's own log."""
        partition = parse_topic_partition(name)
        if partition is None:
            return PartitionContext(recent=self.recent)
        entry = self.topics.get(partition.topic)
        recent = self.recent or entry is not None
        first: SegmentPaths | None = None
        if partition.topic == METADATA_TOPIC or is_set_aside(name):
            return PartitionContext(recent=recent)
        with suppress(FileNotFoundError):  # a topic that was deleted meanwhile
            first = next(iter(list_segments(fs, os.path.join(self.path, name))), first)
        start = self.offsets[LOG_START_OFFSETS].get(partition, first.base_offset if first is not None else 0)
        return PartitionContext(
            self.clean,
            self.offsets[RECOVERY_POINTS].get(partition),
            start,
            self.offsets[HIGH_WATERMARKS].get(partition),
            recent,
            partition in self.offsets[CLEANER_OFFSETS]
            or (entry is not None and "compact" in entry.config.get("cleanup.policy", "")),
        )


def read_directory(fs: Fs, path: str) -> DirectoryState:
    findings: list[Finding] = []
    offsets = {name: _read_offsets(fs, os.path.join(path, name), findings) for name in OFFSET_FILES}
    _read(fs, os.path.join(path, META_PROPERTIES), decode_meta_properties, findings, required=True)
    topics = _read(fs, os.path.join(path, TOPICS), decode_topics, findings) or {}
    _read(fs, os.path.join(path, LEDGER), decode_ledger, findings)
    life = os.path.join(path, LIFE)
    if fs.exists(life) and read_life(fs, path) is None:
        findings.append(
            note(life, "it cannot be read: at its next start the broker reports that it may have lost records")
        )
    manifest = os.path.join(path, ADOPT_MANIFEST)
    if _read(fs, manifest, decode_manifest, findings) is not None:
        findings.append(note(manifest, "a job is adopted in part; seglog adopts the rest when it opens the directory"))
    partitions = []
    for name in fs.listdir(path):
        where = os.path.join(path, name)
        try:
            found = fs.stat(where)
        except FileNotFoundError:
            findings.append(note(where, "it disappeared before it was checked"))
            continue
        if not found.is_dir:
            if name not in _FILES and not _BACKUP.fullmatch(name):
                findings.append(note(where, "not a file of Kafka's"))
        elif name.endswith("-delete") and is_set_aside(name):
            findings.append(note(where, "a deleted partition that waits to be removed; not checked"))
        elif parse_topic_partition(name) is not None or is_set_aside(name):
            partitions.append(name)
        elif name not in _DIRECTORIES:
            findings.append(damage(where, "a directory that is not a partition: Kafka does not start while it exists"))
    clean = read_clean_shutdown(fs, path) is not None
    state = DirectoryState(path, clean, _is_recent(fs, path), offsets, topics, partitions, findings)
    findings += _absent(state)
    return state


def _read(
    fs: Fs, file: str, decode: Callable[[bytes, str], _T], findings: list[Finding], *, required: bool = False
) -> _T | None:
    try:
        return decode(fs.read(file), file)
    except FileNotFoundError:
        if required:
            findings.append(note(file, "the file is missing"))
    except NotRegularFileError as error:
        findings.append(damage(file, str(error.strerror)))
    except CorruptCheckpointError as error:
        findings.append(damage(file, error.reason, position=error.position))
    return None


def read_offset_file(data: bytes, file: str, findings: list[Finding]) -> Mapping[TopicPartition, int]:
    """Decode an offset checkpoint; its errors become findings."""
    try:
        offsets = decode_offsets(data, file)
    except CorruptCheckpointError as error:
        findings.append(damage(file, error.reason, position=error.position))
        return {}
    if data and encode_offsets(offsets) != data:
        findings.append(damage(file, "a partition is listed twice, or the text is not as Kafka writes it"))
    return offsets


def _read_offsets(fs: Fs, file: str, findings: list[Finding]) -> Mapping[TopicPartition, int]:
    try:
        return read_offset_file(fs.read(file), file, findings)
    except FileNotFoundError:
        return {}
    except NotRegularFileError as error:
        findings.append(damage(file, str(error.strerror)))
        return {}


def _is_recent(fs: Fs, path: str) -> bool:
    """Whether ``kafka-storage format`` wrote a metadata version of 4.0 or later, which no older broker starts with."""
    try:
        data = fs.read(os.path.join(path, BOOTSTRAP))
        for entry in entries(data):
            for record in any_magic.decode(data, entry):
                level = _METADATA_VERSION.match(record.value or b"")
                if level is not None and int.from_bytes(level[1]) >= _FIRST_OF_4_0:
                    return True
    except (OSError, CorruptError):
        pass
    return False


def _absent(state: DirectoryState) -> Iterator[Finding]:
    """Partitions in checkpoints that are not here: deleted, or moved to another directory."""
    here = set(state.partitions)
    for name, offsets in state.offsets.items():
        absent = [str(partition) for partition in offsets if str(partition) not in here]
        if absent:
            more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
            yield note(os.path.join(state.path, name), f"{absent[0]}{more}: not in this log directory")


def check_topic_ids(state: DirectoryState, ids: Mapping[str, UUID | None]) -> Iterator[Finding]:
    """Compare the ids in ``partition.metadata`` with each other and with ``seglog.topics``; ``ids`` by directory."""
    known = {name: entry.topic_id for name, entry in state.topics.items() if entry.topic_id is not None}
    for name, topic_id in ids.items():
        partition = parse_topic_partition(name)
        if partition is None or topic_id is None:
            continue
        expected = known.setdefault(partition.topic, topic_id)
        if topic_id != expected:
            yield damage(
                os.path.join(state.path, name, PARTITION_METADATA),
                f"topic id {encode_id(topic_id)}; elsewhere in the log directory the topic has {encode_id(expected)}",
            )


def check_cleaner_offsets(state: DirectoryState, ends: Mapping[str, int]) -> Iterator[Finding]:
    """The cleaner's offsets must be in the log; ``ends`` are log end offsets by directory."""
    for partition, offset in state.offsets[CLEANER_OFFSETS].items():
        end = ends.get(str(partition), offset)
        if offset > end:
            file = os.path.join(state.path, CLEANER_OFFSETS)
            yield note(
                file,
                f"{partition} is clean up to {offset}, and ends at {end}: Kafka cleans it from its start",
                offset=end,
            )


def topic_ids(fs: Fs, state: DirectoryState, directory: str) -> dict[str, UUID | None]:
    """The topic ids of the partitions of the topic of ``directory``, its own last."""
    partition = parse_topic_partition(directory)
    others = [
        name
        for name in state.partitions
        if name != directory
        and partition is not None
        and (one := parse_topic_partition(name))
        and one.topic == partition.topic
    ]
    return {
        name: read_topic_id(fs, os.path.join(state.path, name, PARTITION_METADATA), []) for name in (*others, directory)
    }
