"""Find the partitions under the given paths: log directories of one or more brokers, partitions' directories, globs."""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from seglog.core.errors import InvalidConfigError
from seglog.core.fs import Fs
from seglog.storage.formats.paths import (
    LOG,
    META_PROPERTIES,
    PartitionDir,
    list_partitions,
    parse_file_name,
    partition_at,
)

_WILD: Final = frozenset("*?[")
_COMMA: Final = re.compile(r",(?![^\[]*\])")
"""A comma outside of a glob's brackets."""


class MissingDirectory(NamedTuple):
    """A given directory that cannot be read now, perhaps because its broker or its disk is down."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path} is missing; the other directories are read without it: {self.reason}"


def find_partitions(fs: Fs, paths: Iterable[str], away: list[MissingDirectory] | None = None) -> list[PartitionDir]:
    """The partitions under ``paths``: log directories, partitions' directories, globs, or several separated by commas.

    A partition with replicas in several log directories is found several times. A directory that does not exist raises
    `InvalidConfigError`; if ``away`` is given and another directory exists, it is added there instead.
    """
    found: dict[str, PartitionDir] = {}
    missing: list[tuple[MissingDirectory, Exception]] = []
    given = [part for path in paths for part in _listed(fs, path)]
    for path in given:
        try:
            for match in expand(fs, path):
                real = os.path.realpath(match)
                try:
                    there = _partitions_at(fs, match)
                except (InvalidConfigError, FileNotFoundError):
                    if match == _absolute(path) or fs.exists(match):
                        raise
                    continue  # the glob matched a directory that was deleted since
                for partition in there:
                    is_inside = partition.path != match
                    name = os.path.join(real, os.path.basename(partition.path)) if is_inside else real
                    found.setdefault(name, partition)
        except PermissionError:
            raise
        except (InvalidConfigError, OSError) as error:
            if away is None or len(given) == 1:
                raise
            missing.append((MissingDirectory(path, str(error)), error))
    if len(missing) == len(given) and missing:
        raise missing[0][1]
    if away is not None:
        away += [one for one, _ in missing]
    return sorted(found.values(), key=lambda partition: (partition.topic_partition, partition.path))


def _listed(fs: Fs, path: str) -> list[str]:
    """The parts between commas, as in a broker's ``log.dirs``; but a directory may have a comma in its name."""
    if "," not in path or fs.exists(os.path.abspath(os.path.expanduser(path))):
        return [path]
    return [part for part in (one.strip() for one in _COMMA.split(path)) if part] or [path]


def expand(fs: Fs, path: str) -> list[str]:
    """``path`` itself, or its matches if it has ``*``, ``?`` or ``[…]``; sorted, absolute."""
    if "://" in path and not path.startswith("file:"):
        raise InvalidConfigError(
            f"path {path!r}: seglog reads local files or a mounted file system, not an object store"
        )
    absolute = _absolute(path)
    if not _WILD & set(absolute) or fs.exists(absolute):
        return [absolute]
    matches = ["/"]
    for part in absolute.strip("/").split("/"):
        if _WILD & set(part):
            matches = [
                os.path.join(parent, name)
                for parent in matches
                if _is_dir(fs, parent)
                for name in fs.listdir(parent)
                if fnmatchcase(name, part) and (part.startswith(".") or not name.startswith("."))
            ]
        else:
            matches = [joined for parent in matches if fs.exists(joined := os.path.join(parent, part))]
    matches = [match for match in matches if _is_dir(fs, match)]
    if not matches:
        raise InvalidConfigError(f"path {path!r}: no directory matches")
    return matches


def _absolute(path: str) -> str:
    if path.startswith("file:"):
        path = "/" + path.removeprefix("file:").lstrip("/")
    return os.path.abspath(os.path.expanduser(path))


def _is_dir(fs: Fs, path: str) -> bool:
    return fs.exists(path) and fs.stat(os.path.realpath(path)).is_dir


def _partitions_at(fs: Fs, path: str) -> list[PartitionDir]:
    if not fs.exists(path):
        raise InvalidConfigError(f"path {path!r} does not exist")
    if not _is_dir(fs, path):
        raise InvalidConfigError(f"path {path!r} is a file: name its partition's directory or its log directory")
    names = fs.listdir(path)
    partition = partition_at(path)
    if partition is not None and any((file := parse_file_name(name)) and file.kind == LOG for name in names):
        return [partition]
    partitions = list_partitions(fs, path)
    if not partitions and META_PROPERTIES not in names:
        raise InvalidConfigError(
            f"path {path!r} is neither a log directory (it has no <topic>-<partition>) nor the directory "
            "of a partition (it has no segment)"
        )
    return partitions
