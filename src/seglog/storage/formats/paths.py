"""Kafka's names in a log directory (``LogFileUtils.java``, ``LocalLog.java``): which file is what, and what lies where.

::

    <log.dir>/<topic>-<partition>/<base offset, 20 digits>.log .index .timeindex [.txnindex] [.snapshot]
"""

from __future__ import annotations

import os.path
import re
from typing import Final, NamedTuple
from uuid import UUID

from seglog.core.errors import InvalidLogDirError
from seglog.core.fs import Fs
from seglog.core.types import TopicPartition, parse_topic_partition

LOG: Final = ".log"
INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
TXN_INDEX: Final = ".txnindex"
SNAPSHOT: Final = ".snapshot"

DELETED: Final = ".deleted"
"""Behind a file's whole name: it goes after ``file.delete.delay.ms``."""
CLEANED: Final = ".cleaned"
"""Written by the cleaner, not complete yet."""
SWAP: Final = ".swap"
"""Complete, about to take the place of the segments that it was made from."""

LEADER_EPOCHS: Final = "leader-epoch-checkpoint"
PARTITION_METADATA: Final = "partition.metadata"
META_PROPERTIES: Final = "meta.properties"
LOCK: Final = ".lock"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS: Final = "log-start-offset-checkpoint"
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
CLEANER_OFFSETS: Final = "cleaner-offset-checkpoint"
TOPICS: Final = "seglog.topics"
"""Ours, at the top of a log directory: its topics and their configuration (`seglog.storage.formats.topics_file`)."""
ADOPT_MANIFEST: Final = "seglog.adopt"
"""Ours, at the top of a log directory: the job whose segments are being adopted (`seglog.storage.adopt`)."""
LEDGER: Final = "seglog.ledger"
"""Ours, beside it: the jobs that were adopted."""
SOCKET: Final = "seglog.socket"
"""Ours: where the last process that had the directory open listens (`seglog.storage.directory.owner_socket`)."""
RESERVE: Final = "seglog.reserve"
"""Ours: room that is kept back for a full disk (`seglog.storage.log.dir_health`)."""
LIFE: Final = "seglog.life"
"""Ours: since when a broker's directories have lost nothing (`seglog.storage.directory.loss_evidence`)."""
CLUSTER_MARK: Final = "seglog.cluster"
"""Ours: which cluster and node the directory belongs to (`seglog.storage.directory.cluster_mark`)."""
STORE: Final = "seglog.store"
"""Ours, of a broker that is alone: what it has to remember beside its topics (`seglog.cluster.embedded_store`)."""
FORMER_STORE: Final = "seglog.metadata"
FORMER_STORE_FILES: Final = (FORMER_STORE, f"{FORMER_STORE}-wal", f"{FORMER_STORE}-shm")
"""The first release's file in its place, a SQLite database; it is read once and never removed."""
MANIFEST: Final = "seglog.manifest"
"""Ours, in a partition: its sealed segments (`seglog.storage.log.manifest`)."""
WITNESS: Final = "09223372036854775807.snapshot.deleted"
"""Ours, beside the manifest: another program that loads the partition deletes it."""
OWN_DIRECTORY: Final = ".seglog"
"""Inside of a partition: staging and saved bytes. Kafka ignores it there, and dies of one beside partitions."""

_OF_LOG_DIR: Final = (
    RECOVERY_POINTS,
    LOG_START_OFFSETS,
    HIGH_WATERMARKS,
    CLEANER_OFFSETS,
    META_PROPERTIES,
    CLEAN_SHUTDOWN,
    TOPICS,
)
"""Any of these makes a directory a log directory, whatever its name is."""

_FILE = re.compile(r"(\d{20})(\.log|\.index|\.timeindex|\.txnindex|\.snapshot)(\.deleted|\.cleaned|\.swap)?")
_ASIDE = re.compile(r".+\.[0-9a-f]{32}-(delete|future|stray)")
_LONGEST_NAME: Final = 255


class SegmentFile(NamedTuple):
    """A file's name taken apart; ``state`` is "", DELETED, CLEANED or SWAP."""

    base_offset: int
    kind: str
    state: str


class PartitionDir(NamedTuple):
    """A partition's directory."""

    path: str
    topic_partition: TopicPartition


class SegmentPaths(NamedTuple):
    """The files of one segment; only ``log`` is sure to exist."""

    base_offset: int
    log: str
    offset_index: str
    timeindex: str
    txnindex: str
    snapshot: str

    @property
    def derived(self) -> tuple[str, ...]:
        """The files that recovery can rebuild from the log."""
        return self[2:]


def file_name(base_offset: int, kind: str) -> str:
    """
    >>> file_name(1234, LOG)
    '00000000000000001234.log'
    """
    return f"{base_offset:020d}{kind}"


def parse_file_name(name: str) -> SegmentFile | None:
    """
    >>> parse_file_name("00000000000000001234.timeindex.swap")
    SegmentFile(base_offset=1234, kind='.timeindex', state='.swap')
    """
    match = _FILE.fullmatch(name)
    return SegmentFile(int(match[1]), match[2], match[3] or "") if match else None


def is_set_aside(directory_name: str) -> bool:
    """Whether a directory in a log dir is a ``-delete``, ``-future`` or ``-stray`` one."""
    return _ASIDE.fullmatch(directory_name) is not None


def capped_name(partition: TopicPartition, unique: UUID, suffix: str) -> str:
    """The name of a partition's directory that is set aside, at most 255 characters long
    (``UnifiedLog.logDirNameWithSuffixCappedLength``)."""
    ending = f"-{partition.partition}.{unique.hex}{suffix}"
    return partition.topic[: _LONGEST_NAME - len(ending)] + ending


def segment_paths(partition_path: str, base_offset: int) -> SegmentPaths:
    stem = os.path.join(partition_path, f"{base_offset:020d}")
    return SegmentPaths(base_offset, stem + LOG, stem + INDEX, stem + TIME_INDEX, stem + TXN_INDEX, stem + SNAPSHOT)


def list_segments(fs: Fs, partition_path: str) -> list[SegmentPaths]:
    """The segments of a partition by base offset: one for each ``.log`` that is not on its way in or out."""
    parsed = (parse_file_name(name) for name in fs.listdir(partition_path))
    bases = sorted(file.base_offset for file in parsed if file and file.kind == LOG and not file.state)
    return [segment_paths(partition_path, base) for base in bases]


def list_partitions(fs: Fs, log_dir: str) -> list[PartitionDir]:
    """The partitions of a log directory, by topic and number."""
    found = []
    for name in fs.listdir(log_dir):
        topic_partition = parse_topic_partition(name)
        if topic_partition is not None and not is_set_aside(name):
            path = os.path.join(log_dir, name)
            try:
                is_dir = fs.stat(path).is_dir
            except FileNotFoundError:
                continue  # a topic that was deleted meanwhile
            if is_dir:
                found.append(PartitionDir(path, topic_partition))
    return sorted(found, key=lambda partition: partition.topic_partition)


def is_log_dir(fs: Fs, path: str) -> bool:
    """Whether a directory has files that only a log directory has."""
    return any(fs.exists(os.path.join(path, name)) for name in _OF_LOG_DIR)


def is_partition(fs: Fs, path: str) -> bool:
    """Whether ``path`` is a partition's directory. What is inside decides: `seglog cluster up` names log directories
    ``broker-1``. The name counts only where nothing is inside. A directory that went away is none."""
    try:
        if not fs.stat(os.path.realpath(path)).is_dir or is_log_dir(fs, path):
            return False
        names = fs.listdir(path)
        if any(name in (LEADER_EPOCHS, PARTITION_METADATA) or parse_file_name(name) for name in names):
            return True
        if any(parse_topic_partition(name) and fs.stat(os.path.join(path, name)).is_dir for name in names):
            return False
    except FileNotFoundError:
        return False
    name = os.path.basename(os.path.abspath(path))
    return parse_topic_partition(name) is not None or is_set_aside(name)


def check_holds_no_log_dirs(fs: Fs, path: str) -> None:
    """Refuse the directory of a cluster, as `seglog cluster up` makes it: its log directories look like partitions."""
    if is_log_dir(fs, path):
        return
    inside = [name for name in fs.listdir(path) if fs.exists(os.path.join(path, name, META_PROPERTIES))]
    if inside:
        named = ", ".join(inside[:10]) + (" …" if len(inside) > 10 else "")
        raise InvalidLogDirError(
            f"{path} is neither a log directory nor a partition's, but holds log directories; name one of {named}"
        )


def partition_at(path: str) -> PartitionDir | None:
    """``path`` as a partition's directory, if its name is one's."""
    absolute = os.path.abspath(path)
    topic_partition = parse_topic_partition(os.path.basename(absolute))
    return PartitionDir(absolute, topic_partition) if topic_partition else None
