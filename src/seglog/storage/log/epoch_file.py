"""``leader-epoch-checkpoint`` of one log, on the disk.

An append that begins an epoch changes memory only. Each batch names its epoch, and recovery reads the batches from the
recovery point on, so the file must have an epoch only before the recovery point passes its first batch: `Log.flush`
writes it first, and the directory's background thread soon after the append. An epoch without batches, that of a new
leader, is on the disk before the leader serves any request (`write_all`), unless it is epoch 0 of a new log
(`Log.begin_first_epoch`).
"""

from __future__ import annotations

import os.path
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final, TypeVar

from seglog.core.fs import File, Fs, NoSpaceError
from seglog.core.ground import Workers
from seglog.storage.formats.checkpoints import encode_epochs, write_leader_epochs
from seglog.storage.formats.paths import LEADER_EPOCHS
from seglog.storage.log.epochs import LeaderEpochs

_TOGETHER: Final = 128
"""Files that are replaced together: each is open meanwhile."""
_THREADS: Final = 8
"""Fsyncs at the same time: a file system commits its journal once for all that wait."""
_TEMPORARY: Final = ".tmp"
MakeRoom = Callable[[Callable[[], None]], None]
"""`DirHealth.make_room`."""
Of = TypeVar("Of")


class EpochFile:
    """The file of a log in the directory ``path``, and what it has. ``epochs`` are the log's own, which change."""

    __slots__ = ("_epochs", "_fs", "_is_gone", "_path", "_written", "lock")

    def __init__(self, fs: Fs, path: str, epochs: LeaderEpochs) -> None:
        self._fs = fs
        self._epochs = epochs
        self.lock = threading.RLock()
        """Held while the file is written, and while the partition's directory is renamed. Taken after a log's lock."""
        self._path = path  # guarded by lock
        self._is_gone = False  # guarded by lock
        self._written = epochs.copy()  # guarded by lock

    @property
    def is_current(self) -> bool:
        """Whether the disk has all epochs."""
        return self._written == self._epochs

    @property
    def is_empty(self) -> bool:
        """Whether the disk has no epoch."""
        return not self._written

    def moved_to(self, path: str) -> None:
        """The partition's directory was renamed, to be deleted or set aside: write nothing more."""
        with self.lock:
            self._path = path
            self._is_gone = True

    def write(self, make_room: MakeRoom) -> None:
        """Replace the file, unless it is current; durable when it returns. `NoSpaceError`: it is as before."""
        with self.lock:
            if not (self.is_current or self._is_gone):
                make_room(self._write)

    def _write(self) -> None:
        epochs = self._epochs.copy()
        write_leader_epochs(self._fs, self._path, epochs.entries)
        self._written = epochs

    # In steps, with many others

    @property
    def _temporary(self) -> str:
        return os.path.join(self._path, LEADER_EPOCHS + _TEMPORARY)

    def _stage(self, epochs: LeaderEpochs) -> File:
        """Write the temporary file, and leave it open."""
        file = self._fs.open(self._temporary, create=True)
        try:
            file.truncate(0)
            file.pwrite(encode_epochs(epochs.entries), 0)
        except BaseException as error:
            file.close()
            if isinstance(error, NoSpaceError):
                self._give_up()
            raise
        return file

    def _place(self) -> None:
        try:
            self._fs.rename(self._temporary, os.path.join(self._path, LEADER_EPOCHS))
        except NoSpaceError:
            self._give_up()
            raise

    def _give_up(self) -> None:
        """Remove the temporary file: it takes room, and the next one may be shorter."""
        if self._fs.exists(self._temporary):
            self._fs.unlink(self._temporary)


def write_all(files: Sequence[EpochFile], workers: Workers, make_room: MakeRoom) -> Mapping[EpochFile, NoSpaceError]:
    """`EpochFile.write` for many logs of one directory, with few waits for the disk: all temporary files are written,
    then all are fsynced, then all renamed, then all directories fsynced. Returns those that found no room.

    For one thread at a time, off the event loop.
    """
    full: dict[EpochFile, NoSpaceError] = {}
    for some in _chunks(files):
        with ExitStack() as held:
            for file in some:
                held.enter_context(file.lock)
            left = [file for file in some if not (file.is_current or file._is_gone)]
            if len(left) > 1:
                full |= _replace(left, workers, make_room)
                continue
            for file in left:
                try:
                    file.write(make_room)
                except NoSpaceError as error:
                    full[file] = error
    return full


def _chunks(files: Sequence[EpochFile]) -> Iterator[Sequence[EpochFile]]:
    for at in range(0, len(files), _TOGETHER):
        yield files[at : at + _TOGETHER]


def _replace(files: Sequence[EpochFile], workers: Workers, make_room: MakeRoom) -> dict[EpochFile, NoSpaceError]:
    full: dict[EpochFile, NoSpaceError] = {}
    staged: dict[EpochFile, LeaderEpochs] = {}
    opened: list[File] = []
    placed: list[EpochFile] = []

    def stage(file: EpochFile) -> None:
        epochs = file._epochs.copy()
        opened.append(file._stage(epochs))
        closing.callback(opened[-1].close)
        staged[file] = epochs

    def place(file: EpochFile) -> None:
        file._place()
        placed.append(file)

    def try_each(act: Callable[[EpochFile], None], some: Sequence[EpochFile]) -> None:
        for file in some:
            try:
                make_room(partial(act, file))
            except NoSpaceError as error:
                full[file] = error

    with ExitStack() as closing:
        try_each(stage, files)
        _spread(workers, lambda file: file.fsync(), opened)
    try_each(place, list(staged))
    _spread(workers, lambda file: file._fs.fsync_dir(file._path), placed)
    for file in placed:
        file._written = staged[file]
    return full


def _spread(workers: Workers, act: Callable[[Of], object], items: Sequence[Of]) -> None:
    for _, result in workers.spread(act, items, threads=_THREADS, name="seglog-epochs"):
        result()
