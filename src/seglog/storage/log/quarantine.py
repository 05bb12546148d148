"""Cut a log at its first bad batch, and save the bytes that are cut.

The bytes from the bad batch on, and the segments after it, go to a directory of their own in the partition's::

    .seglog/cut-<ms since 1970>/00000000000000000000.log.from-4711     the tail, from position 4711 on
    .seglog/cut-<ms since 1970>/00000000000000009000.log               a later segment, whole

All segments of a log that ends below its start go to ``.seglog/emptied-<ms since 1970>/`` in the same way, and what a
replica cuts after an unclean election to ``.seglog/unclean-<ms since 1970>/``. Those stay.
"""

from __future__ import annotations

import os.path
from collections.abc import Sequence
from typing import Final, NamedTuple

from seglog.core.errors import CorruptError
from seglog.core.fs import File, Fs, remove_tree, write_atomically
from seglog.storage.formats.paths import LOG, OWN_DIRECTORY, SNAPSHOT, SegmentPaths, parse_file_name
from seglog.storage.log.segment import Segment

_UNCLEAN: Final = "unclean-"
MAX_SAVED: Final = 16
"""Cuts kept in a partition, the newest: a machine that crashes again and again must not fill its disk."""
_PREFIX: Final = "cut-"
_EMPTIED: Final = "emptied-"
"""These are never removed: a log is emptied once, and all that it held is there."""
_CHUNK: Final = 4 << 20


class Cut(NamedTuple):
    """Bytes cut from a log: ``size`` bytes from ``position`` of ``file`` on, with ``offset`` and all after it.

    ``saved`` is the directory that has them now, None if they were zeros only, which a file has where it was extended
    and not written. ``later`` are the base offsets of the segments that followed.
    """

    file: str
    position: int
    offset: int
    reason: str
    size: int
    saved: str | None
    later: tuple[int, ...]

    def __str__(self) -> str:
        and_segments = f" and {len(self.later)} later segments" if self.later else ""
        where = f"saved in {self.saved}" if self.saved else "they were zeros"
        return (
            f"{self.file}: cut at position {self.position}, offset {self.offset} ({self.reason}); {self.size} bytes"
            f"{and_segments}, {where}"
        )


_REFUSED_START: Final = "refused-log-start"
"""In ``.seglog``: the log start offset for which a partition was refused after a clean shutdown."""


def read_refused_start(fs: Fs, path: str) -> int | None:
    """The log start offset for which the partition at ``path`` is refused; None: for none."""
    file = os.path.join(path, OWN_DIRECTORY, _REFUSED_START)
    if not fs.exists(file):
        return None
    text = fs.read(file).strip()
    return int(text) if text.isdigit() else None


def write_refused_start(fs: Fs, path: str, offset: int) -> None:
    own = _own_directory(fs, path)
    write_atomically(fs, os.path.join(own, _REFUSED_START), f"{offset}\n".encode())


def forget_refused_start(fs: Fs, path: str) -> None:
    file = os.path.join(path, OWN_DIRECTORY, _REFUSED_START)
    if fs.exists(file):
        fs.unlink(file)


class EmptiedLog(NamedTuple):
    """All segments of a log, moved to the directory ``saved``: by base offset, ``size`` bytes of ``.log`` files."""

    reason: str
    size: int
    saved: str
    segments: tuple[int, ...]

    def __str__(self) -> str:
        count = len(self.segments)
        return f"{self.reason}; {count} segment{'s' if count != 1 else ''}, {self.size} bytes, saved in {self.saved}"


def save_log(fs: Fs, path: str, reason: str, now_ms: int) -> EmptiedLog:
    """Move all segments and snapshots of the log at ``path`` to a directory of their own; the log is empty then.

    The last ``.log`` goes last: stopped anywhere, the log still ends where it did, and this can be begun again.
    """
    saved = _make_directory(fs, path, _EMPTIED, now_ms)
    size, bases = 0, []
    found = [(name, file) for name in fs.listdir(path) if (file := parse_file_name(name)) and not file.state]
    for name, file in sorted(found, key=lambda one: (one[1].kind != SNAPSHOT, one[1].base_offset, one[1].kind == LOG)):
        if file.kind == LOG:
            size += fs.stat(os.path.join(path, name)).size
            bases.append(file.base_offset)
        fs.rename(os.path.join(path, name), os.path.join(saved, name))
        fs.fsync_dir(saved)
        fs.fsync_dir(path)
    return EmptiedLog(reason, size, saved, tuple(bases))


def cut_log(fs: Fs, path: str, segment: Segment, later: Sequence[SegmentPaths], bad: CorruptError, now_ms: int) -> Cut:
    """End the log at ``path`` with the good batches of ``segment``; ``later`` are the files of the segments after it.

    Stopped anywhere, it can be begun again: the bad bytes go last, when all that followed them is gone for good.
    """
    position, end = segment.size, segment.log.size()
    worth_saving = [paths for paths in later if not _only_zeros_at(fs, paths.log)]
    saved = None
    if worth_saving or not only_zeros(segment.log, position, end):
        saved = _new_directory(fs, path, now_ms)
        name = f"{os.path.basename(segment.paths.log)}.from-{position}"
        _copy(fs, segment.log, position, end, os.path.join(saved, name))
    for paths in reversed(later):
        if saved is not None and paths in worth_saving:
            fs.rename(paths.log, os.path.join(saved, os.path.basename(paths.log)))
        else:
            fs.unlink(paths.log)
        for derived in paths.derived:
            if fs.exists(derived):
                fs.unlink(derived)
    if saved is not None:
        fs.fsync_dir(saved)
    fs.fsync_dir(path)
    segment.truncate_bytes(position)
    segment.log.fsync()
    offset = bad.offset if bad.offset is not None else segment.base_offset
    bases = tuple(paths.base_offset for paths in later)
    return Cut(segment.paths.log, position, offset, bad.reason, end - position, saved, bases)


def save_from(fs: Fs, path: str, segments: Sequence[Segment], position: int, now_ms: int) -> str:
    """Copy what is about to be cut from the log at ``path``: the first of ``segments`` from ``position`` on, and the
    others whole. Returns the directory that has them, durable."""
    saved = _make_directory(fs, path, _UNCLEAN, now_ms)
    for segment in segments:
        name = os.path.basename(segment.paths.log)
        name = f"{name}.from-{position}" if position else name
        _copy(fs, segment.log, position, segment.size, os.path.join(saved, name))
        position = 0
    fs.fsync_dir(saved)
    return saved


def _new_directory(fs: Fs, path: str, now_ms: int) -> str:
    own = os.path.join(path, OWN_DIRECTORY)
    taken = [name for name in fs.listdir(own) if name.startswith(_PREFIX)] if fs.exists(own) else []
    by_age = sorted(taken, key=lambda name: (len(name), name))
    for name in by_age[: max(0, len(taken) - MAX_SAVED + 1)]:
        remove_tree(fs, os.path.join(own, name))
    return _make_directory(fs, path, _PREFIX, now_ms)


def _own_directory(fs: Fs, path: str) -> str:
    own = os.path.join(path, OWN_DIRECTORY)
    if not fs.exists(own):
        fs.mkdir(own)
        fs.fsync_dir(path)
    return own


def _make_directory(fs: Fs, path: str, prefix: str, now_ms: int) -> str:
    own = _own_directory(fs, path)
    taken = set(fs.listdir(own))
    while (name := f"{prefix}{now_ms}") in taken:
        now_ms += 1
    saved = os.path.join(own, name)
    fs.mkdir(saved)
    fs.fsync_dir(own)
    return saved


def _copy(fs: Fs, source: File, start: int, end: int, path: str) -> None:
    target = fs.open(path, create=True)
    try:
        position = start
        while position < end:
            data = source.pread(min(_CHUNK, end - position), position)
            if not data:
                break
            target.pwrite(data, position - start)
            position += len(data)
        target.fsync()
    finally:
        target.close()


def only_zeros(file: File, start: int, end: int) -> bool:
    """Whether a file has nothing but zeros from ``start`` to ``end``."""
    position = start
    while position < end:
        data = file.pread(min(_CHUNK, end - position), position)
        if data.count(0) != len(data):
            return False
        position += len(data) or end
    return True


def _only_zeros_at(fs: Fs, path: str) -> bool:
    file = fs.open(path, write=False)
    try:
        return only_zeros(file, 0, file.size())
    finally:
        file.close()
