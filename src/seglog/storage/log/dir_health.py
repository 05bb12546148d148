"""Shared by a log and its directory: a place for slow work, the state of its disk, and room kept for a full disk."""

from __future__ import annotations

import errno
import logging
import os
import os.path
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol, TypeVar

from seglog.core.errors import LogDirFullError, LogDirOfflineError
from seglog.core.fs import Fs, NoSpaceError
from seglog.storage.formats.paths import RESERVE

_MOST: Final = 1 << 20
_SHARE: Final = 64
_BLOCK: Final = 4096


def reserve_size(total: int) -> int:
    """Bytes that are kept back on a disk of ``total`` bytes: a 64th of it, at most 1 MiB.

    >>> reserve_size(16 << 20), reserve_size(1 << 40)
    (262144, 1048576)
    """
    share = min(total // _SHARE, _MOST)
    return share // _BLOCK * _BLOCK if share >= _BLOCK else share


def is_short(free: int, total: int) -> bool:
    """Whether a directory with this room takes no records, or is about to take none."""
    return free < 2 * reserve_size(total)


class Reserve:
    """``seglog.reserve`` of one log directory: room for writes that make room on a full disk.

    To delete records or a topic, a checkpoint must be written first; a clean stop writes snapshots. When an append
    finds the disk full, this file is removed, and these small writes take its place. Appends are refused until there is
    room for the file again, and for as much besides. Kafka ignores the file; its bytes mean nothing.
    """

    def __init__(self, fs: Fs, log_dir: str) -> None:
        self._fs = fs
        self._log_dir = log_dir
        self._path = os.path.join(log_dir, RESERVE)

    def take(self) -> bool:
        """Make the file, if there is room for twice as much: else the next append would find the disk full again."""
        fs = self._fs
        try:
            size = reserve_size(fs.space(self._log_dir).total)
            held = fs.stat(self._path).size if fs.exists(self._path) else 0
            if held != size:
                fs.allocate(self._path, 2 * size)
                fs.allocate(self._path, size)
        except NoSpaceError:
            self.give_up()
            return False
        return True

    def give_up(self) -> bool:
        """Free the room; False if there was none to free."""
        if not self._fs.exists(self._path):
            return False
        self._fs.unlink(self._path)
        return True


_logger = logging.getLogger("seglog")
_LOOK_EVERY_SECONDS: Final = 0.1
Of = TypeVar("Of")


class Background(Protocol):
    """Runs work of a log that must not delay an append: fsyncs and late deletions."""

    def submit(self, task: Callable[[], None]) -> None:
        """Run soon, in the order submitted."""

    def schedule(self, delay_ms: int, task: Callable[[], None]) -> None:
        """Run once, ``delay_ms`` from now."""


class Inline:
    """`Background` without a thread: everything at once."""

    def submit(self, task: Callable[[], None]) -> None:
        task()

    def schedule(self, delay_ms: int, task: Callable[[], None]) -> None:
        del delay_ms
        task()


class DirHealth:
    """Whether a log directory may still be written: after the first failed write or fsync, never again (KIP-112).

    The page cache may have dropped what an fsync failed to write, and says so only once: a retry would report success.

    A full disk is not a failure. The write that finds it full is undone. While the directory is ``full``, appends are
    refused with `LogDirFullError`; everything else goes on in the room that `Reserve` kept back.
    """

    __slots__ = ("_failed", "_lock", "_looked_at", "_reserve", "_room_changed", "failure", "full", "path")

    def __init__(self, path: str) -> None:
        self._lock = threading.Lock()
        """Held while the state changes, not while listeners are told. Its holder waits for no other lock."""
        self.path = path
        self.failure: OSError | None = None  # guarded by _lock
        self.full: NoSpaceError | None = None  # guarded by _lock
        self._failed: Callable[[OSError], None] = lambda _: None  # guarded by _lock
        self._room_changed: Callable[[], None] = lambda: None  # guarded by _lock
        self._reserve: Reserve | None = None  # set once, when the directory is opened
        self._looked_at = -_LOOK_EVERY_SECONDS  # guarded by _lock

    def watch(self, *, failed: Callable[[OSError], None], room_changed: Callable[[], None]) -> None:
        """From now on call ``failed`` once with the first error, which may have been before, and ``room_changed``
        whenever ``full`` changes; both in the thread that finds out."""
        with self._lock:
            self._failed, self._room_changed = failed, room_changed
            failure = self.failure
        if failure is not None:
            failed(failure)

    def check(self) -> None:
        if self.failure is not None:
            raise LogDirOfflineError(f"{self.path} is out of use since: {self.failure}") from self.failure

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Writes go in here: an OSError takes the directory out of use, but that of a full disk."""
        self.check()
        try:
            yield
        except OSError as error:
            raise self.refusal(error) from error

    def refusal(self, error: OSError) -> LogDirOfflineError | LogDirFullError:
        """Note the ``error`` of a write or fsync, and return the error to raise for it."""
        if isinstance(error, NoSpaceError):
            self.filled(error)
            return self._is_full(error)
        self.failed(error)
        return LogDirOfflineError(f"{self.path} is out of use: {error}")

    def failed(self, error: OSError) -> None:
        with self._lock:
            if self.failure is not None:
                return
            self.failure, tell = error, self._failed
        tell(error)

    # A full disk

    def keep_back(self, reserve: Reserve) -> None:
        """Reserve this room for a full disk. If there is no room for it, the disk counts as full."""
        self._reserve = reserve
        if not reserve.take():
            self.filled(NoSpaceError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path))

    def filled(self, error: NoSpaceError) -> None:
        """A write found no room."""
        with self._lock:
            if self._reserve is not None:
                self._reserve.give_up()
            is_new = self.full is None
            if is_new:
                self.full = error
        if is_new:
            _logger.error(
                "%s is full, and accepts no records until it has space: %s. Retention, DeleteRecords and the deletion "
                "of topics continue; no acknowledged record is lost",
                self.path,
                error,
            )
            self._room_changed()

    def check_room(self, now: float) -> None:
        """Raise `LogDirFullError` while the disk is full; every tenth of a second of ``now`` it is tried again."""
        if self.full is not None and not self.has_room(now):
            raise self._is_full(self.full)

    def has_room(self, now: float) -> bool:
        """Whether the directory takes records; a full disk is checked again."""
        try:
            with self._lock:  # with the reserve: another thread may just find the disk full again
                if self.full is None:
                    return True
                if self.failure is not None or now - self._looked_at < _LOOK_EVERY_SECONDS:
                    return False
                self._looked_at = now
                if self._reserve is not None and not self._reserve.take():
                    return False
                self.full = None
        except OSError as error:
            self.failed(error)
            return False
        _logger.warning("%s has space again, and accepts records", self.path)
        self._room_changed()
        return True

    def make_room(self, write: Callable[[], Of]) -> Of:
        """``write`` a small file that makes room, or says where a log begins: on a full disk, in what was kept back.

        It is called twice if there was no room at first, and must undo what it has done until then.
        """
        try:
            return write()
        except NoSpaceError as error:
            with self._lock:
                has_freed = self._reserve is not None and self._reserve.give_up()
            if not has_freed:
                raise
            self.filled(error)
            return write()

    def _is_full(self, error: NoSpaceError) -> LogDirFullError:
        return LogDirFullError(f"{self.path} is full: {error}. Delete records or topics, or make the disk larger")
