"""The files and partitions that the paths on a command line stand for. Symbolic links are followed."""

from __future__ import annotations

import errno
import os
import os.path
import re
from collections.abc import Iterator
from typing import Final

from seglog.core.errors import InvalidLogDirError
from seglog.core.fs import File, Fs
from seglog.storage.formats.paths import (
    INDEX,
    LOG,
    META_PROPERTIES,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    PartitionDir,
    check_holds_no_log_dirs,
    is_partition,
    list_partitions,
    parse_file_name,
    partition_at,
)

_KINDS: Final = (LOG, INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT)
CHECKPOINT: Final = ".checkpoint"
_SLASHES: Final = re.compile("//+")


def open_file(fs: Fs, path: str) -> File:
    return fs.open(os.path.realpath(path), write=False)


def read_file(fs: Fs, path: str) -> bytes:
    return fs.read(os.path.realpath(path))


def java_path(path: str) -> str:
    """The path as ``java.io.File`` prints it.

    >>> java_path("a//b/")
    'a/b'
    """
    path = _SLASHES.sub("/", path)
    return path.rstrip("/") if len(path) > 1 else path


def expand_files(fs: Fs, paths: list[str]) -> Iterator[str]:
    """The files named, and in partitions and log directories the files that Kafka's tool can print.

    Raises FileNotFoundError if a path does not exist, unless it has a suffix of Kafka's: opening that fails later,
    after the first lines that Kafka's tool prints. Raises `InvalidLogDirError` for a directory with
    neither partitions nor ``meta.properties``.
    """
    for path in paths:
        if not path.endswith((*_KINDS, CHECKPOINT)) and not os.path.exists(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path or "''")
        if not os.path.isdir(path):
            yield path
            continue
        partitions = expand_partitions(fs, path)
        if not partitions and not fs.exists(os.path.join(path, META_PROPERTIES)):
            raise InvalidLogDirError(f"{path} is neither a log directory nor a partition's")
        for partition in partitions:
            parsed = {name: parse_file_name(name) for name in fs.listdir(partition)}
            found = [
                (file.base_offset, _KINDS.index(file.kind), name)
                for name, file in parsed.items()
                if file and not file.state
            ]
            yield from (os.path.join(partition, name) for _, _, name in sorted(found))


def expand_partitions(fs: Fs, path: str) -> list[str]:
    """``path`` if it is a partition, else its partitions, sorted. `InvalidLogDirError`: it holds log directories."""
    if is_partition(fs, path):
        return [path]
    check_holds_no_log_dirs(fs, path)
    return [partition.path for partition in list_partitions(fs, path)]


def partition_of(directory: str) -> PartitionDir | None:
    """The partition by the directory's name, or by the name of the directory that it links to."""
    return partition_at(directory) or partition_at(os.path.realpath(directory))
