"""What the commands about clusters share: where the cluster is, and a connection for each look at it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple, TypeVar

import typer

from seglog.cli.wire.clients import Bootstrap
from seglog.client.bootstrap import HostPort, parse_bootstrap
from seglog.core.clock import SystemClock
from seglog.core.errors import RequestFailedError

if TYPE_CHECKING:
    from seglog.client.cluster import ClusterAdmin

T = TypeVar("T")
_PAUSE_SECONDS: Final = 0.5


class Where(NamedTuple):
    """The options by which a command finds a cluster."""

    bootstrap: Bootstrap = "localhost:9092"
    timeout: Annotated[float, typer.Option(metavar="S", min=0.1, help="Seconds to wait for an answer.")] = 30.0

    def asking(self) -> Asking:
        try:
            return Asking(parse_bootstrap(self.bootstrap), self.timeout)
        except ValueError as error:
            raise typer.BadParameter(f"--bootstrap-server: {error}") from error


ANYWHERE: Final = Where()


class Asking:
    """A cluster to which there is no lasting connection: brokers may go, those that were seen are asked too."""

    def __init__(self, addresses: list[HostPort], timeout: float) -> None:
        self._addresses = addresses
        self._timeout = timeout
        self._now = SystemClock().monotonic

    def once(self, ask: Callable[[ClusterAdmin], T]) -> T:
        """With a connection of its own. `RequestFailedError`."""
        from seglog.client.cluster import ClusterAdmin  # the protocol's schema takes a while to load

        with ClusterAdmin(self._addresses, self._timeout) as admin:
            answer = ask(admin)
            self._addresses = list(dict.fromkeys([*self._addresses, *admin.addresses()]))
            return answer

    def patiently(self, ask: Callable[[ClusterAdmin], T]) -> T:
        """The same, again and again for as long as an answer may take: leaders and brokers change meanwhile."""
        deadline = self._now() + self._timeout
        while True:
            try:
                return self.once(ask)
            except RequestFailedError:
                if self._now() > deadline:
                    raise
            pause()


def pause(seconds: float = _PAUSE_SECONDS) -> None:
    """Before the cluster is looked at again: it tells nobody of what it does."""
    threading.Event().wait(seconds)
