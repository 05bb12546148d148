"""Thousands of topics: created, grown and deleted, a thousand a request, on one broker and on three.

The CPU is that until the response, and that until some seconds later, without what idle brokers use: Kafka responds
before the new partitions have leaders, and both remove logs later.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from bench import brokers, clusters
from bench.brokers import cpu_of, load
from bench.clusters import Cluster
from bench.kafka import BROKER, describe
from seglog.protocol.apis import ApiKey
from tests.broker.broker_thread import Wire

_TOPICS: Final = int(os.environ.get("SEGLOG_BENCH_TOPICS", "3000"))
_EACH: Final = min(_TOPICS, 1_000)
_TIMEOUT_MS: Final = 600_000
_AFTER_SECONDS: Final = 4.0


class Side:
    """The brokers of one side: a bootstrap address, and the processes whose CPU time counts."""

    def __init__(self, bootstrap: str, pids: Sequence[int]) -> None:
        self._bootstrap = bootstrap
        self._pids = pids
        self._idle = 0.0

    def rest(self) -> None:
        """Note the seconds of CPU per second of brokers that have nothing to do."""
        used = self._cpu()
        time.sleep(_AFTER_SECONDS)  # how long is measured: nothing else happens meanwhile
        self._idle = (self._cpu() - used) / _AFTER_SECONDS

    def change(self, key: ApiKey, field: str, topics: Sequence[Mapping[str, Any]]) -> tuple[float, float, float]:
        """Seconds of one request, and seconds of CPU up to its response and with all that follows."""
        with Wire(self._bootstrap, timeout=_TIMEOUT_MS / 1000) as wire:
            began, before = time.perf_counter(), self._cpu()
            answer = wire.ask(key, topics=topics, timeout=_TIMEOUT_MS)
            took, used = time.perf_counter() - began, self._cpu() - before
        wrong = [one for one in getattr(answer, field) if one.error_code]
        assert not wrong, wrong[:3]
        time.sleep(_AFTER_SECONDS)  # what follows the response counts too, and no request tells its end
        return took, used, self._cpu() - before - self._idle * (time.perf_counter() - began)

    def look(self, topic: str) -> float:
        """Seconds of one Metadata request."""
        with Wire(self._bootstrap) as wire:
            wire.ask(ApiKey.METADATA, topics=[{"name": topic}])
            began = time.perf_counter()
            wire.ask(ApiKey.METADATA, topics=[{"name": topic}])
            return time.perf_counter() - began

    def _cpu(self) -> float:
        return sum(map(cpu_of, self._pids))


def main() -> None:
    print(f"{describe(BROKER)}; {_TOPICS} topics, {_EACH} a request; {load()}")
    with brokers.both() as servers:
        _measure("one broker", {name: Side(one.bootstrap, [one.pid]) for name, one in servers.items()}, 1)
    with clusters.both() as sides:
        _measure("three brokers", {name: _side(one) for name, one in sides.items()}, clusters.NODES)


def _side(cluster: Cluster) -> Side:
    return Side(cluster.bootstrap.split(",")[0], cluster.pids)


def _measure(where: str, sides: Mapping[str, Side], factor: int) -> None:
    """The sides take turns, a request each."""
    print(f"  {where}", flush=True)
    for side in sides.values():
        side.rest()
    parts = list(_parts())
    for names in parts:
        topics = [{"name": name, "num_partitions": 1, "replication_factor": factor} for name in names]
        _show(f"create, {names[0]} to {names[-1]}", ApiKey.CREATE_TOPICS, "topics", topics, sides)
    more = [{"name": "one-more", "num_partitions": 1, "replication_factor": factor}]
    _show("create one more", ApiKey.CREATE_TOPICS, "topics", more, sides)
    print("    Metadata of one: " + ", ".join(f"{name} {one.look('t-0') * 1e3:.1f} ms" for name, one in sides.items()))
    for names in parts[:: max(len(parts) - 1, 1)]:  # the first and the last
        grown = [{"name": name, "count": 2} for name in names]
        _show(f"grow, {names[0]} to {names[-1]}", ApiKey.CREATE_PARTITIONS, "results", grown, sides)
    for names in parts:
        gone = [{"name": name, "topic_id": None} for name in names]
        _show(f"delete, {names[0]} to {names[-1]}", ApiKey.DELETE_TOPICS, "responses", gone, sides)


def _parts() -> Iterator[list[str]]:
    for start in range(0, _TOPICS, _EACH):
        yield [f"t-{number}" for number in range(start, min(start + _EACH, _TOPICS))]


def _show(what: str, key: ApiKey, field: str, topics: Sequence[Mapping[str, Any]], sides: Mapping[str, Side]) -> None:
    found = {name: side.change(key, field, topics) for name, side in sides.items()}
    times = ", ".join(
        f"{name} {took:.2f} s ({used:.2f} s of CPU, {settled:.2f} s with what follows)"
        for name, (took, used, settled) in found.items()
    )
    print(f"    {what}: {times}", flush=True)


if __name__ == "__main__":
    main()
