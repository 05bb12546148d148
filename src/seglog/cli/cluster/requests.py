"""Requests of the commands about clusters: where the cluster is, and a connection for each request."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from seglog.cli.wire.clients import (
    Bootstrap,
    CommandConfig,
    Properties,
    Timeout,
    bootstrap_addresses,
    client_settings,
)
from seglog.client.bootstrap import HostPort
from seglog.cluster.health import ClusterStatus
from seglog.core.clock import SystemClock
from seglog.core.errors import RequestFailedError

if TYPE_CHECKING:
    from seglog.client.cluster import ClusterAdmin
    from seglog.client.security.security_config import SecurityConfig

T = TypeVar("T")
_PAUSE_SECONDS: Final = 0.5


class ClusterOptions(NamedTuple):
    """The options by which a command finds a cluster."""

    bootstrap: Bootstrap = "localhost:9092"
    properties: Properties = None
    command_config: CommandConfig = None
    timeout: Timeout = 30.0

    @property
    def addresses(self) -> list[HostPort]:
        return bootstrap_addresses(self.bootstrap)

    @property
    def security(self) -> SecurityConfig:
        from seglog.cli.wire.client_settings import security_of

        return security_of(client_settings(self.properties, self.command_config))

    def requests(self, addresses: list[HostPort] | None = None) -> ClusterRequests:
        """To these addresses, or to the bootstrap servers."""
        return ClusterRequests(self.addresses if addresses is None else addresses, self.timeout, self.security)


DEFAULT_CLUSTER: Final = ClusterOptions()


class ClusterRequests:
    """Sends requests without a lasting connection. Brokers may leave, so it also tries the brokers seen before."""

    def __init__(self, addresses: list[HostPort], timeout: float, security: SecurityConfig | None = None) -> None:
        self._addresses = addresses
        self._more = () if security is None else (security,)
        self._timeout = timeout
        self._now = SystemClock().monotonic

    def once(self, ask: Callable[[ClusterAdmin], T]) -> T:
        """Call ``ask`` with a new connection. Raises `RequestFailedError`."""
        from seglog.client.cluster import ClusterAdmin  # slow to import: it loads the protocol's schema

        with ClusterAdmin(self._addresses, self._timeout, *self._more) as admin:
            answer = ask(admin)
            self._addresses = list(dict.fromkeys([*self._addresses, *admin.addresses()]))
            return answer

    def patiently(self, ask: Callable[[ClusterAdmin], T]) -> T:
        """The same, retried up to the timeout, because leaders and brokers change meanwhile."""
        deadline = self._now() + self._timeout
        while True:
            try:
                return self.once(ask)
            except RequestFailedError:
                if self._now() > deadline:
                    raise
            pause()

    def look(self, topics: Collection[str] | None = None, *, closely: bool = True) -> ClusterStatus:
        """Brokers and partitions; ``closely``: with sizes and log ends."""
        return self.patiently(lambda admin: admin.look(topics, closely=closely))


def pause(seconds: float = _PAUSE_SECONDS) -> None:
    """Wait before the next request: a cluster does not notify its clients."""
    threading.Event().wait(seconds)
