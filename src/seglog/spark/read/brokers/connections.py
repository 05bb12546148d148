"""One set of connections for each cluster, kept by a process of Spark's from task to task."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Final, TypeVar

from seglog.client.client_config import ClientConfig
from seglog.client.cluster_connections import ClusterConnections

_KEPT: Final = 8
T = TypeVar("T")


def connections(config: ClientConfig) -> ClusterConnections:
    """The connections of this process. A process that was forked opens its own."""
    return _connections(config, os.getpid())


@lru_cache(_KEPT)
def _connections(config: ClientConfig, process: int) -> ClusterConnections:
    del process
    return ClusterConnections(config)
