"""The configuration of our client, under the names of Kafka's consumer and producer (``CommonClientConfigs.java``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from seglog.client.bootstrap import HostPort, parse_bootstrap


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """How a client reaches brokers. Times are in seconds.

    ``timeout`` is ``request.timeout.ms``: how long a broker may be silent. ``connect_timeout`` is
    ``socket.connection.setup.timeout.ms``; ``retry_backoff`` is ``retry.backoff.ms``. The fields for fetching have
    larger defaults than a consumer, because a task reads many records.
    """

    bootstrap: tuple[HostPort, ...]
    client_id: str = "seglog"
    timeout: float = 30.0
    connect_timeout: float = 10.0
    retry_backoff: float = 0.1
    rack: str = ""
    fetch_max_bytes: int = 16 << 20
    fetch_min_bytes: int = 1
    fetch_max_wait: float = 0.5
    max_partition_fetch_bytes: int = 4 << 20


def client_config(properties: Mapping[str, str]) -> ClientConfig:
    return ClientConfig(bootstrap=tuple(parse_bootstrap(properties["bootstrap.servers"])))
