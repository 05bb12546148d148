"""What starts at the beginning of a ``with`` and is gone at its end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Generic, Self, TypeVar

from tests.kafka.process import JavaProcess

__all__ = ["JavaServer", "Several", "Started"]


class Started(ABC):
    @abstractmethod
    def start(self) -> None:
        """Returns when it serves."""

    @abstractmethod
    def leave(self) -> None:
        """The end of the ``with``."""

    def leave_failed(self) -> None:
        """The same, after an error."""
        self.leave()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.leave()
        else:
            self.leave_failed()


class JavaServer(Started):
    """One Java process, again and again. `launch` sets ``_process``."""

    _process: JavaProcess | None = None

    @property
    def pid(self) -> int:
        """Of its process, while it runs."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start and wait until it answers. Raises RuntimeError with the end of its log."""
        self.launch()
        self.wait()

    @abstractmethod
    def launch(self) -> None:
        """Start without waiting."""

    @abstractmethod
    def wait(self) -> None:
        """Until it answers."""

    def check_stopped(self) -> None:
        if self._process is not None:
            raise RuntimeError("the server is running")

    def wait_until(self, answers: Callable[[], bool], seconds: float) -> None:
        if self._process is None:
            raise RuntimeError("the server is not running")
        try:
            self._process.wait_until(answers, seconds=seconds)
        except BaseException:
            self._process = None  # it was killed
            raise

    def stop(self) -> None:
        """A clean stop (SIGTERM). Of a broker: logs flushed, indexes trimmed, producer snapshots and checkpoints
        written."""
        process, self._process = self._process, None
        if process is not None:
            process.stop()

    def kill(self) -> None:
        """SIGKILL. Of a broker: no checkpoint, no `.kafka_cleanshutdown`, indexes still pre-allocated."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()


S = TypeVar("S", bound=JavaServer)


class Several(Started, Generic[S]):
    """Servers that start together and are killed together. What is one of them has ``nodes``."""

    nodes: list[S]

    def start(self) -> None:
        """All of them; returns when each answers."""
        try:
            for node in self.nodes:
                node.launch()
            for node in self.nodes:
                node.wait()
        except BaseException:
            self.kill()
            raise

    def leave(self) -> None:
        self.kill()

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()
