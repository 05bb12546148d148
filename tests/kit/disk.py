"""A small disk of a broker's own, which can be full: a tmpfs. It needs root."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.kit.service import Service

_PIECE: Final = 1 << 20


class Disk(Service):
    """``with Disk(path, megabytes) as disk``: mounted at ``path``, which is made."""

    def __init__(self, path: Path, megabytes: int) -> None:
        self.path = path
        self._megabytes = megabytes
        self._filler = path / "filler"

    @staticmethod
    def can_be_made() -> bool:
        """Whether this machine lets us."""
        with TemporaryDirectory(prefix="seglog-disk-") as path:
            try:
                with Disk(Path(path) / "try", 1):
                    return True
            except (FileNotFoundError, RuntimeError):
                return False

    def start(self) -> None:
        self.path.mkdir(parents=True)
        options = f"size={self._megabytes}m,mode=0700"
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "seglog-test", str(self.path)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"mount {self.path}: {done.stderr.strip()}")

    def leave(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.path)], capture_output=True, check=True)

    def fill(self) -> None:
        """Not a byte is left."""
        with self._filler.open("ab", buffering=0) as file:
            piece = _PIECE
            while piece:
                try:
                    os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), piece)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    piece //= 2

    def free(self) -> None:
        """As much is left as before `fill`."""
        self._filler.unlink(missing_ok=True)
