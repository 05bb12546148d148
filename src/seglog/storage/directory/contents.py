"""The contents of a log directory before it is opened: its path, mode, subdirectories and ``meta.properties``."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from seglog.core.errors import InvalidLogDirError
from seglog.core.fs import Fs
from seglog.core.ground import Ground
from seglog.core.topic_names import METADATA_TOPIC
from seglog.core.types import TopicPartition, parse_topic_partition
from seglog.storage.directory.strays import is_stray_name
from seglog.storage.formats.checkpoints import (
    MetaProperties,
    new_cluster_id,
    new_id,
    read_meta_properties,
    write_meta_properties,
)
from seglog.storage.formats.paths import (
    LOCK,
    META_PROPERTIES,
    capped_name,
    is_set_aside,
    list_segments,
    partition_at,
)

_REMOTE_INDEXES: Final = "remote-log-index-cache"
"""Directories of a Kafka broker that are not partitions; its log manager ignores them too."""
_WORLD_WRITABLE: Final = 0o002


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryListing:
    """The directories in a log directory: partitions, and the names of deleted partitions and of strays."""

    partitions: list[TopicPartition]
    deleted: list[str]
    strays: list[str]


def resolve(path: str | os.PathLike[str]) -> str:
    """The real path of a log directory. Symbolic links are followed here only."""
    given = os.fspath(path)
    if not given:
        raise InvalidLogDirError("the path of a log directory is empty")
    return os.path.realpath(given)


def make_directory(fs: Fs, path: str, *, create: bool) -> None:
    """Make the directory at ``path`` unless it exists; `InvalidLogDirError` if that is not a directory."""
    if not fs.exists(path):
        if not create:
            raise InvalidLogDirError(f"{path} does not exist")
        parent = os.path.dirname(path)
        if parent != path and not fs.exists(parent):
            make_directory(fs, parent, create=True)
        fs.mkdir(path)
        fs.fsync_dir(parent)
        return
    found = fs.stat(path)
    if not found.is_dir:
        raise InvalidLogDirError(f"{path} is not a directory")


def check_mode(fs: Fs, path: str) -> None:
    mode = fs.stat(path).mode
    if mode & _WORLD_WRITABLE:
        raise InvalidLogDirError(f"{path} may be written by everyone (mode {mode:04o}): chmod o-w {path}")


def check_fresh(fs: Fs, path: str) -> None:
    """Check a directory that was never opened, so that nothing is written into one that is not a log directory."""
    if fs.exists(os.path.join(path, LOCK)):
        return
    list_entries(fs, path)
    if partition_at(path) is not None and list_segments(fs, path):
        raise InvalidLogDirError(
            f"{path} is the directory of a partition: its log directory is {os.path.dirname(path)}"
        )


def list_entries(fs: Fs, path: str) -> DirectoryListing:
    """List a log directory. Regular files of any name are ignored.

    Raises `InvalidLogDirError` for a directory that is not Kafka's, by its name, as Kafka does.
    """
    partitions, deleted, strays = [], [], []
    for name in fs.listdir(path):
        found = fs.stat(os.path.join(path, name))
        if found.is_symlink:
            raise InvalidLogDirError(
                f"{os.path.join(path, name)} is a symbolic link: a log directory must not contain any"
            )
        if not found.is_dir or name == _REMOTE_INDEXES:
            continue
        if is_set_aside(name):
            if name.endswith("-delete"):
                deleted.append(name)
            elif is_stray_name(name):
                strays.append(name)
            continue
        partition = parse_topic_partition(name)
        if partition is None:
            raise InvalidLogDirError(
                f"{os.path.join(path, name)} is neither a partition's directory (topic-number) nor one that Kafka has "
                "set aside (topic-number.id-delete): a log directory has no others"
            )
        if partition.topic != METADATA_TOPIC:
            partitions.append(partition)
    return DirectoryListing(partitions=sorted(partitions), deleted=deleted, strays=strays)


def deleted_name(partition: TopicPartition, unique: UUID) -> str:
    """The name of a partition's directory after its topic is deleted, at most 255 characters.

    >>> deleted_name(TopicPartition("web", 3), UUID(int=5))
    'web-3.00000000000000000000000000000005-delete'
    """
    return capped_name(partition, unique, "-delete")


def is_aside_of(name: str, partition: TopicPartition) -> bool:
    """Whether a deleted or stray directory may have been this partition's, by its name.

    >>> is_aside_of("web-3.00000000000000000000000000000005-delete", TopicPartition("web", 3))
    True
    """
    return name.startswith(deleted_name(partition, UUID(int=0)).rpartition(".")[0] + ".")


def _check_nothing_is_there(fs: Fs, path: str, fault: str) -> None:
    """For a directory whose ``meta.properties`` does not say to which cluster it belongs: `InvalidLogDirError` if logs
    are in it."""
    partitions = list_entries(fs, path).partitions
    held = next((one for one in partitions if list_segments(fs, os.path.join(path, str(one)))), None)
    if held is None:
        return
    file = os.path.join(path, META_PROPERTIES)
    raise InvalidLogDirError(
        f"{file} {fault}, and {held} is there: restore the file, or write it again with the lines version=1, "
        "cluster.id=…, node.id=… and directory.id=…, as another log directory of this broker has them, with a "
        "directory.id of its own (22 characters of base64)"
    )


def read_or_make_meta(ground: Ground, path: str, *, cluster_id: str | None, node_id: int | None) -> MetaProperties:
    """Read ``meta.properties``, or write it with the given or random ids. `InvalidLogDirError` if the ids differ, or if
    it is missing beside partitions, or has no id: other ids would separate the data from their cluster."""
    fs, rng = ground.fs, ground.rng
    meta = read_meta_properties(fs, path)
    if meta is None or (meta.cluster_id is None and meta.node_id is None):
        _check_nothing_is_there(fs, path, "is missing" if meta is None else "names no cluster.id and no node.id")
        meta = MetaProperties(1, cluster_id or new_cluster_id(rng), 1 if node_id is None else node_id, new_id(rng))
        write_meta_properties(fs, path, meta, ground.clock.now_ms())
    for key, wanted, found in (("cluster.id", cluster_id, meta.cluster_id), ("node.id", node_id, meta.node_id)):
        if wanted is not None and found is not None and wanted != found:
            raise InvalidLogDirError(f"{path} belongs to {key} {found}, not {wanted} (meta.properties)")
    return meta
