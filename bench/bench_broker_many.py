"""Many of everything: partitions, clients, idle connections; old data read while new come in; a second broker."""

from __future__ import annotations

import os
import socket
import statistics
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from bench import librdkafka
from bench.brokers import ROUNDS, Seglog, Server, both, delete_topic, load, new_topic, resident, show, turn_about
from bench.kafka import BROKER, describe

_MB: Final = int(os.environ.get("SEGLOG_BENCH_MB", "128"))
# A thousand partitions with a hundred clients of each kind are asked for elsewhere by these: they need a quiet machine.
_PARTITIONS: Final = int(os.environ.get("SEGLOG_BENCH_PARTITIONS", "200"))
_CLIENTS: Final = int(os.environ.get("SEGLOG_BENCH_CLIENTS", "20"))
_IDLE: Final = int(os.environ.get("SEGLOG_BENCH_IDLE", "5000"))
_RECORD: Final = 1000
_SMALL_BATCHES: Final[Mapping[str, str]] = {"batch.size": "16384", "linger.ms": "5"}
_LITTLE: Final[Mapping[str, str]] = {"queued.max.messages.kbytes": "1024", "fetch.wait.max.ms": "100"}


def main() -> None:
    print(f"{describe(BROKER)}; {_MB} MB a turn; {load()}")
    with both() as servers:
        _many_clients(servers)
        _idle_connections(servers)
        _old_data(servers)
    _second_broker()


def _many_clients(servers: Mapping[str, Server]) -> None:
    """Each client has its share of the partitions, which it fills, or reads from the beginning, one after the other."""
    each = _PARTITIONS // _CLIENTS
    count = _MB * 1_000_000 // _RECORD // _PARTITIONS
    topics = {name: new_topic(server, _PARTITIONS) for name, server in servers.items()}

    def produce(name: str, server: Server) -> float:
        return _at_once(
            lambda part: librdkafka.produce(server.bootstrap, topics[name], count, _RECORD, {}, partitions=part), each
        )

    def consume(name: str, server: Server) -> float:
        return _at_once(
            lambda part: librdkafka.consume(server.bootstrap, topics[name], count, _LITTLE, partitions=part), each
        )

    size = count * _PARTITIONS * _RECORD
    title = f"{_CLIENTS} clients, {_PARTITIONS} partitions"
    show(f"produce, {title}", turn_about(servers, produce, rounds=1, unmeasured=1), size)
    show(f"consume, {title}", turn_about(servers, consume, rounds=1, unmeasured=0), size)


def _at_once(work: Callable[[range], object], each: int) -> float:
    """Seconds until all clients are done."""
    began = time.perf_counter()
    with ThreadPoolExecutor(_CLIENTS) as pool:
        for done in [pool.submit(work, range(at, at + each)) for at in range(0, _CLIENTS * each, each)]:
            done.result()
    return time.perf_counter() - began


def _idle_connections(servers: Mapping[str, Server]) -> None:
    before = {name: resident(server.pid) for name, server in servers.items()}
    with ExitStack() as stack:
        for server in servers.values():
            stack.enter_context(_connections(server))
        each = {name: (resident(server.pid) - before[name]) / _IDLE for name, server in servers.items()}
        grown = ", ".join(f"{name} {size / 1e3:.1f} KB each" for name, size in each.items())
        print(f"  {_IDLE} idle connections: {grown}", flush=True)
        _throughput(f"produce beside {_IDLE} idle connections", servers)


@contextmanager
def _connections(server: Server) -> Iterator[None]:
    """Connections that have asked for the versions of the API, and then nothing more."""
    asked = struct.pack(">ihhih", 10, 18, 0, 1, -1)
    with ExitStack() as stack:
        for _ in range(_IDLE):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            connection.sendall(asked)
            connection.recv(4 << 10)
        yield


def _throughput(title: str, servers: Mapping[str, Server]) -> None:
    count = _MB * 1_000_000 // _RECORD

    def produce(_: str, server: Server) -> float:
        topic = new_topic(server)
        took = librdkafka.produce(server.bootstrap, topic, count, _RECORD, _SMALL_BATCHES)
        delete_topic(server, topic)
        return took

    show(title, turn_about(servers, produce), count * _RECORD)


def _old_data(servers: Mapping[str, Server]) -> None:
    """One reads what is there from the beginning while another one writes as much to another topic."""
    count = _MB * 1_000_000 // _RECORD
    old = {name: new_topic(server) for name, server in servers.items()}
    for name, server in servers.items():
        librdkafka.produce(server.bootstrap, old[name], count, _RECORD, _SMALL_BATCHES)

    def both_ways(name: str, server: Server) -> float:
        new = new_topic(server)
        with ThreadPoolExecutor(2) as pool:
            reading = pool.submit(librdkafka.consume, server.bootstrap, old[name], count, {})
            writing = pool.submit(librdkafka.produce, server.bootstrap, new, count, _RECORD, _SMALL_BATCHES)
            took = max(reading.result(), writing.result())
        delete_topic(server, new)
        return took

    show("old data read while producing", turn_about(servers, both_ways), 2 * count * _RECORD)


def _second_broker() -> None:
    """Two producers to one broker, and to a broker each."""
    count = _MB * 1_000_000 // _RECORD // 2

    def produce(target: Seglog) -> object:
        return librdkafka.produce(target.bootstrap, new_topic(target), count, _RECORD, _SMALL_BATCHES)

    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="seglog-bench-")))
        first, second = (stack.enter_context(Seglog(root / name)) for name in ("a", "b"))
        sides = {"one broker": (first, first), "a broker each": (first, second)}
        took: dict[str, list[float]] = {title: [] for title in sides}
        for _ in range(ROUNDS):
            for title, targets in sides.items():
                began = time.perf_counter()
                with ThreadPoolExecutor(2) as pool:
                    list(pool.map(produce, targets))
                took[title].append(time.perf_counter() - began)
        speeds = {title: 2 * count * _RECORD / statistics.median(several) / 1e6 for title, several in took.items()}
        shown = ", ".join(f"{title} {speed:.0f} MB/s" for title, speed in speeds.items())
        print(f"  two producers: {shown}; {load()}", flush=True)


if __name__ == "__main__":
    main()
