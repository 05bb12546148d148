"""How much a follower fetches at a time, and how long it waits: Kafka's keys."""

from __future__ import annotations

from typing import NamedTuple


class FetcherConfig(NamedTuple):
    """``socket_request_max_bytes``: no producer could send a larger batch; one batch comes whole, however large."""

    replica_fetch_max_bytes: int = 1 << 20
    replica_fetch_response_max_bytes: int = 10 << 20
    replica_fetch_min_bytes: int = 1
    replica_fetch_wait_max_ms: int = 500
    replica_fetch_backoff_ms: int = 1_000
    replica_socket_timeout_ms: int = 30_000
    socket_request_max_bytes: int = 100 << 20
