"""Connections that a process of Spark's keeps from task to task, one set for each cluster."""

from __future__ import annotations

import os
from typing import Final

from seglog.client.client_config import ClientConfig
from seglog.client.cluster_connections import ClusterConnections

_MOST: Final = 8
"""Configurations whose connections are kept. Those used longest ago are closed."""
_kept: Final[dict[tuple[int, ClientConfig, str], ClusterConnections]] = {}


def connections(config: ClientConfig, lane: str = "") -> ClusterConnections:
    """The connections of this process. A process that was forked opens its own.

    Each ``lane`` has connections of its own: where requests stay unanswered for a while, nothing else can be asked.
    """
    key = (os.getpid(), config, lane)
    found = _kept.pop(key, None) or ClusterConnections(config)
    _kept[key] = found
    while len(_kept) > _MOST:
        _kept.pop(next(iter(_kept))).close()
    return found


def close_all() -> None:
    """Close all connections of this process."""
    while _kept:
        _kept.popitem()[1].close()
