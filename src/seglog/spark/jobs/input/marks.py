"""Selects the bytes of files that no earlier job has read into a topic.

A job recognizes a file by its path, or by device and inode if it was renamed (a rotated log), and by digests of its
first bytes and of those before the position that was reached. If the first bytes differ, it is another file. If only
the later ones differ, the file was edited: new rows cannot be told from ingested ones, so the job refuses it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Final, NamedTuple

from seglog.core.errors import InvalidConfigError
from seglog.core.fs import File, Fs
from seglog.storage.formats.adopt_manifest import InputMark, Intake

_DIGESTED: Final = 64 << 10


class NewBytes(NamedTuple):
    """The bytes of a file that a job must read."""

    path: str
    start: int
    end: int


class NewInput(NamedTuple):
    """``new`` has the files with new bytes, ``known`` counts the others.

    ``unfinished`` has the size of each last line without a line end, which is left for later.
    """

    new: tuple[NewBytes, ...]
    known: int
    unfinished: Mapping[str, int]
    intake: Intake


def select_new(
    fs: Fs,
    paths: Sequence[str],
    marks: Sequence[InputMark],
    *,
    topic: str,
    topic_id: str,
    whole: bool,
    again: bool,
    take_unfinished: bool,
) -> NewInput:
    """The bytes of ``paths`` that the ``marks`` of the topic do not cover.

    If ``whole``, files are read in one piece (Parquet, CSV with values over several lines), as compressed files always
    are. Otherwise only complete lines are read, unless ``take_unfinished``. With ``again`` everything is new. Raises
    `InvalidConfigError` if a file was changed in the part that was read before.
    """
    mine = [] if again else [mark for mark in marks if (mark.topic, mark.topic_id) == (topic, topic_id)]
    by_path = {mark.path: mark for mark in mine}
    by_inode = {(mark.device, mark.inode): mark for mark in mine}
    expected = {mark.path: mark for mark in marks if mark.topic == topic}
    new: list[NewBytes] = []
    changes: list[tuple[InputMark | None, InputMark]] = []
    unfinished: dict[str, int] = {}
    digest = hashlib.sha256()
    for path in paths:
        real = os.path.realpath(path)
        with closing(fs.open(real, write=False)) as file:
            state = os.stat(real)
            is_whole = whole or path.lower().endswith((".gz", ".zst", ".bz2"))
            size = file.size()
            end = size if is_whole or take_unfinished else _last_line_end(file, size)
            start, known = _resume(file, path, size, state, by_path.get(real), by_inode)
            if is_whole and 0 < start < end:
                raise _changed(path, start, "has grown, and can be read only as a whole")
            mark = InputMark(
                topic, topic_id, real, state.st_dev, state.st_ino, state.st_mtime_ns // 1_000_000,
                max(start, end), *_digests(file, max(start, end)),
            )  # fmt: skip
            digest.update(f"{mark.position} {mark.head} {mark.tail}\n".encode())
            if start < end:
                new.append(NewBytes(path, start, end))
            if end < size:
                unfinished[path] = size - end
            if start < end or (known is not None and known.path != real):
                changes.append((expected.get(real), mark))
    return NewInput(tuple(new), len(paths) - len(new), unfinished, Intake(tuple(changes), digest.hexdigest()))


def _resume(
    file: File,
    path: str,
    size: int,
    state: os.stat_result,
    at_path: InputMark | None,
    by_inode: Mapping[tuple[int, int], InputMark],
) -> tuple[int, InputMark | None]:
    """The position to continue from, and the mark by which the file was recognized."""
    moved = by_inode.get((state.st_dev, state.st_ino))
    for mark in dict.fromkeys((at_path, moved)):
        if mark is None or not mark.position or size < min(mark.position, _DIGESTED):
            continue
        is_unchanged = size == mark.position and state.st_mtime_ns // 1_000_000 != mark.mtime_ms
        if mark is not at_path and is_unchanged:
            continue  # another file reuses the inode: a rename would have kept the time
        if _digest(file, 0, min(mark.position, _DIGESTED)) != mark.head:
            continue
        if size < mark.position or _digests(file, mark.position)[1] != mark.tail:
            raise _changed(path, mark.position, "was changed")
        return mark.position, mark
    return 0, None


def _changed(path: str, position: int, what: str) -> InvalidConfigError:
    return InvalidConfigError(
        f"{path}: {position} bytes of it were ingested, and since then the file {what}: seglog cannot tell which "
        "rows are new. Put them into a file of their own, or read the whole file again with --again (again=True)"
    )


def _digests(file: File, position: int) -> tuple[str, str]:
    near = min(position, _DIGESTED)
    return _digest(file, 0, near), _digest(file, position - near, near)


def _digest(file: File, start: int, size: int) -> str:
    return hashlib.sha256(file.pread(size, start)).hexdigest()


def _last_line_end(file: File, size: int) -> int:
    """The position after the last line end."""
    end = size
    while end:
        start = max(end - _DIGESTED, 0)
        found = file.pread(end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
