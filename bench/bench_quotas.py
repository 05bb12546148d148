"""What quotas are for: the latency of an honest producer beside a greedy one, and beside a flood of connections from
another address, without and with a quota for these. ``SEGLOG_BENCH_ROUNDS`` times turn about."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.brokers import ROUNDS, Seglog, load, new_topic
from seglog.client.admin import Admin
from seglog.client.bootstrap import parse_bootstrap
from tests.broker.python_clients import Producer

_RECORDS: Final = 300
_GREEDY: Final = """
import sys
from bench import librdkafka
librdkafka.produce(sys.argv[1], sys.argv[2], 10**8, 1_000, {"client.id": "greedy", "batch.size": "16384"})
"""
_FLOOD: Final = """
import socket, sys
while True:
    try:
        with socket.create_connection(("127.0.0.1", int(sys.argv[1])), 5, ("127.0.0.2", 0)) as one:
            one.sendall(bytes((0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 1, 255, 255)))
            one.recv(1000)
    except OSError:
        pass
"""
_QUOTAS: Final[Mapping[str, tuple[Mapping[str, str], Mapping[str, float]]]] = {
    "greedy": ({"client-id": "greedy"}, {"producer_byte_rate": 5_000_000.0}),
    "flood": ({"ip": "127.0.0.2"}, {"connection_creation_rate": 20.0}),
}


def main() -> None:
    print(f"ms to acknowledge one record of 100 B, median and p99 of {_RECORDS}; {load()}")
    figures: dict[str, list[list[float]]] = {}
    settings = {"max.connection.creation.rate": "2147483647"}
    with tempfile.TemporaryDirectory(prefix="seglog-bench-") as name, Seglog(Path(name) / "log", settings) as broker:
        for _ in range(ROUNDS):
            figures.setdefault("alone", []).append(_latencies(broker))
            for what in _QUOTAS:
                with _running(what, broker):
                    figures.setdefault(f"beside the {what}", []).append(_latencies(broker))
                with _limited(what, broker), _running(what, broker):
                    figures.setdefault(f"beside the {what}, with its quota", []).append(_latencies(broker))
    for title, rounds in figures.items():
        ends = [statistics.quantiles(one, n=100) for one in rounds]
        median, most = (statistics.median(one[place] for one in ends) for place in (49, 98))
        print(f"{title:36} {median:8.2f} {most:8.2f}")


def _latencies(broker: Seglog) -> list[float]:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0, "client.id": "honest"})
    topic, found = new_topic(broker), []
    for number in range(_RECORDS + 10):
        begun = time.perf_counter()
        producer.produce(topic, b"v" * 100)
        producer.flush(60)
        if number >= 10:
            found.append((time.perf_counter() - begun) * 1000)
        time.sleep(0.005)  # a steady client, which does not hurry
    return found


@contextmanager
def _limited(what: str, broker: Seglog) -> Iterator[None]:
    entity, quotas = _QUOTAS[what]
    with Admin(parse_bootstrap(broker.bootstrap), 30) as admin:
        admin.alter_client_quotas(entity, quotas, validate_only=False)
        yield
        admin.alter_client_quotas(entity, dict.fromkeys(quotas), validate_only=False)


@contextmanager
def _running(what: str, broker: Seglog) -> Iterator[None]:
    commands = [[sys.executable, "-c", _FLOOD, str(broker.port)] for _ in range(2)]
    if what == "greedy":
        commands = [[sys.executable, "-c", _GREEDY, broker.bootstrap, new_topic(broker)] for _ in range(2)]
    children = [subprocess.Popen(command) for command in commands]
    try:
        time.sleep(3)  # the greedy one has had its burst
        yield
    finally:
        for child in children:
            child.kill()
            child.wait()


if __name__ == "__main__":
    main()
