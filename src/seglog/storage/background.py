"""What a log shares with its directory: a place for slow work, and whether the disk may still be trusted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from seglog.core.errors import LogDirOfflineError


class Background(Protocol):
    """Where a log has done what must not hold up an append: fsyncs and late deletions."""

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
    """

    __slots__ = ("failure", "on_failure", "path")

    def __init__(self, path: str, on_failure: Callable[[OSError], None] | None = None) -> None:
        self.path = path
        self.failure: OSError | None = None
        self.on_failure = on_failure

    def check(self) -> None:
        if self.failure is not None:
            raise LogDirOfflineError(f"{self.path} is out of use since: {self.failure}") from self.failure

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Writes go in here: an OSError takes the directory out of use."""
        self.check()
        try:
            yield
        except OSError as error:
            self.failed(error)
            raise LogDirOfflineError(f"{self.path} is out of use: {error}") from error

    def failed(self, error: OSError) -> None:
        if self.failure is None:
            self.failure = error
            if self.on_failure is not None:
                self.on_failure(error)
