"""Remove or complete what a crash left of a deletion, a compaction or a split: the first step of loading a log.

Files go ``.cleaned`` -> ``.swap`` -> plain name, and the ones that they replace -> ``.deleted``. A replacement counts
once every new file is ``.swap``; files are renamed to that from the highest base offset down, so that a ``.cleaned``
file tells that all ``.swap`` files from its offset on are of an unfinished replacement (KAFKA-6264). Rules of
``LogLoader.java``.
"""

from __future__ import annotations

import os.path
from contextlib import closing
from typing import NamedTuple

from seglog.core.errors import InvalidLogDirError
from seglog.core.fs import Fs
from seglog.records.batch import last_offset_of
from seglog.storage.formats.batch_walk import walk
from seglog.storage.formats.paths import (
    CLEANED,
    DELETED,
    LEADER_EPOCHS,
    LOG,
    MANIFEST,
    PARTITION_METADATA,
    SNAPSHOT,
    SWAP,
    WITNESS,
    SegmentFile,
    file_name,
    parse_file_name,
)


class Leftovers(NamedTuple):
    """Names of files that were removed, that got their final name, and indexes without a log, which went too."""

    removed: tuple[str, ...] = ()
    swapped: tuple[str, ...] = ()
    orphans: tuple[str, ...] = ()


def clear_leftovers(fs: Fs, path: str) -> Leftovers:
    """Bring the partition directory at ``path`` to the state before or after each replacement and deletion.

    Can be stopped anywhere and begun again. Raises `InvalidLogDirError` on a symbolic link.
    """
    names = fs.listdir(path)
    for name in names:
        if fs.stat(os.path.join(path, name)).is_symlink:
            raise InvalidLogDirError(
                f"{os.path.join(path, name)} is a symbolic link: none is followed inside of a log directory"
            )
    parsed = {name: file for name in names if name != WITNESS and (file := parse_file_name(name))}
    removed = [name for name, file in parsed.items() if file.state == DELETED]
    removed += [name for name in names if _is_unfinished(name)]
    removed += _invalid_swaps(parsed)
    _remove(fs, path, removed)
    cleaned = [name for name, file in parsed.items() if file.state == CLEANED]
    _remove(fs, path, cleaned)
    swaps = [name for name, file in parsed.items() if file.state == SWAP and name not in removed]
    replaced = _replaced(fs, path, {name: parsed[name] for name in swaps}, parsed)
    _remove(fs, path, replaced)
    for name in swaps:
        fs.rename(os.path.join(path, name), os.path.join(path, name.removesuffix(SWAP)))
    orphans = _orphans(fs.listdir(path))
    _remove(fs, path, orphans)
    if swaps:
        fs.fsync_dir(path)
    return Leftovers(tuple(removed + cleaned + replaced), tuple(swaps), tuple(orphans))


def _is_unfinished(name: str) -> bool:
    """A file that was about to take another one's place (`write_atomically`)."""
    final, dot, extension = name.rpartition(".")
    if not dot or extension != "tmp":
        return False
    file = parse_file_name(final)
    return final in (LEADER_EPOCHS, MANIFEST, PARTITION_METADATA) or (file is not None and file.kind == SNAPSHOT)


def _invalid_swaps(parsed: dict[str, SegmentFile]) -> list[str]:
    unfinished_from = min((file.base_offset for file in parsed.values() if file.state == CLEANED), default=None)
    if unfinished_from is None:
        return []
    return [name for name, file in parsed.items() if file.state == SWAP and file.base_offset >= unfinished_from]


def _replaced(fs: Fs, path: str, swaps: dict[str, SegmentFile], parsed: dict[str, SegmentFile]) -> list[str]:
    """The files whose offsets are in the ``.swap`` segments, from the first one's base to the last one's end.

    Snapshots stay: they tell of all offsets before theirs, and one that no segment begins at goes later.
    """
    logs = [file.base_offset for file in swaps.values() if file.kind == LOG]
    if not logs:
        return []
    end = max(_next_offset(fs, os.path.join(path, file_name(base, LOG) + SWAP), base) for base in logs)
    return [
        name
        for name, file in parsed.items()
        if not file.state and file.kind != SNAPSHOT and min(logs) <= file.base_offset < end
    ]


def _next_offset(fs: Fs, path: str, base_offset: int) -> int:
    """The offset after the last whole batch of a log file; its indexes are not asked."""
    following = base_offset
    with closing(fs.open(path, write=False)) as file:
        for entry, _, data in walk(file, whole=False):
            following = last_offset_of(data, entry) + 1
    return following


def _orphans(names: list[str]) -> list[str]:
    parsed = {name: file for name in names if (file := parse_file_name(name)) and not file.state}
    logs = {file.base_offset for file in parsed.values() if file.kind == LOG}
    return [name for name, file in parsed.items() if file.kind not in (LOG, SNAPSHOT) and file.base_offset not in logs]


def _remove(fs: Fs, path: str, names: list[str]) -> None:
    for name in names:
        fs.unlink(os.path.join(path, name))
    if names:
        fs.fsync_dir(path)
