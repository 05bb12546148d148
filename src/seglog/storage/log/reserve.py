"""``seglog.reserve``: room that a log directory keeps back, for what makes room on a full disk.

Whoever wants to delete records or a topic must write a checkpoint first, and a clean stop writes snapshots. When an
append finds the disk full, this file goes, and what little has to be written fits in its place. Appends are refused
from then on, until there is room for the file again, and for as much as that besides.

It lies at the top of the log directory, a regular file that Kafka ignores; its bytes say nothing.
"""

from __future__ import annotations

import os.path
from typing import Final

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
    """The file of one log directory."""

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
