"""Services that run from the beginning of a ``with`` to its end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

__all__ = ["Service", "Services"]


class Service(ABC):
    @abstractmethod
    def start(self) -> None:
        """Return when it serves."""

    @abstractmethod
    def leave(self) -> None:
        """End it with the ``with``."""

    def leave_failed(self) -> None:
        """End it after an error in the ``with``: the test's own error must be seen, not a complaint about the end."""
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


class Server(Protocol):
    def launch(self) -> None:
        """Start without waiting."""

    def wait(self) -> None:
        """Return when it serves."""

    def kill(self) -> None:
        """SIGKILL, if it runs."""


S = TypeVar("S", bound=Server)


class Services(Service, Generic[S]):
    """Servers that start together and are killed together; a subclass sets ``nodes``."""

    nodes: list[S]

    def start(self) -> None:
        """Start all of them; return when each serves."""
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
