"""Loopback ports for servers of a test."""

from __future__ import annotations

import atexit
import random
import socket
from collections import deque
from functools import cache

# Below the range from which the kernel takes ports for outgoing connections, so a port that is free now is still free
# when the server binds it, and nothing else listens there while the server is down.
_PORTS = range(18_000, 32_000)
_LANES = 35
_given: deque[int] = deque(maxlen=200)
_chance = random.SystemRandom()  # not the one that hypothesis seeds


@cache
def _lane() -> tuple[socket.socket, range]:
    """This process's own ports: each process of pytest-xdist, and of other runs on this machine, has others. It holds
    the first of them for as long as it runs."""
    for number in _chance.sample(range(_LANES), _LANES):
        guard = socket.socket()
        try:
            guard.bind(("127.0.0.1", _PORTS[number]))
        except OSError:
            guard.close()
            continue
        atexit.register(guard.close)
        return guard, _PORTS[number + _LANES :: _LANES]
    raise RuntimeError(f"{_LANES} processes give out ports between {_PORTS.start} and {_PORTS.stop}")


def free_port() -> int:
    """A loopback port on which nothing listens, and which this process has not given out lately."""
    _, ports = _lane()
    for port in _chance.sample(ports, len(ports)):
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
