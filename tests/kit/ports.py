"""Loopback ports for servers of a test."""

from __future__ import annotations

import os
import random
import socket
from collections import deque

# Below the range from which the kernel takes ports for outgoing connections, so a port that is free now is still free
# when the server binds it, and nothing else listens there while the server is down. Each process of pytest-xdist has
# its own ports, and gives none out twice for a long time.
_PORTS = range(18_000, 32_000)
_LANES = 8
_lane = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _LANES
_given: deque[int] = deque(maxlen=500)
_chance = random.SystemRandom()  # not the one that hypothesis seeds


def free_port() -> int:
    """A loopback port on which nothing listens, and which this process has not given out lately."""
    for port in _chance.sample(_PORTS[_lane::_LANES], 1000):
        if port in _given:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            _given.append(port)
            return port
    raise RuntimeError(f"no free port between {_PORTS.start} and {_PORTS.stop}")
