"""The configuration of our client, under the names of Kafka's consumer and producer (``CommonClientConfigs.java``)."""

from __future__ import annotations

from dataclasses import dataclass

from seglog.client.bootstrap import HostPort


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """How a client reaches brokers. Times are in seconds.

    ``timeout`` is ``request.timeout.ms``: how long a broker may be silent. ``connect_timeout`` is
    ``socket.connection.setup.timeout.ms``; ``retry_backoff`` is ``retry.backoff.ms``.
    """

    bootstrap: tuple[HostPort, ...]
    client_id: str = "seglog"
    timeout: float = 30.0
    connect_timeout: float = 10.0
    retry_backoff: float = 0.1
