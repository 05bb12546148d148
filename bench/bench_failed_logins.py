"""How long records take at 1,000 a second for a client that is logged in, alone and while 1,000 logins a second fail.

``seglog perf`` with librdkafka is the client, and the failing ones are another process; all share the machine's cores.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from bench.brokers import ROUNDS, cpu_of, load, new_topic
from bench.commands import ENVIRONMENT, seglog
from bench.kafka import BROKER, describe
from bench.secured import SecuredServer, both_secured

_SECONDS: Final = int(os.environ.get("SEGLOG_BENCH_SECONDS", "5"))
_RATE: Final = 1000
_LISTENER: Final = "SASL"


class _Round(NamedTuple):
    """The 99th percentile in ms, and the server's seconds of CPU."""

    p99: float
    cpu: float


def main() -> None:
    print(f"{describe(BROKER)}; records of 100 bytes, medians of {ROUNDS} rounds; {load()}")
    with both_secured() as (servers, settings):
        for name, server in servers.items():
            rounds = [_both_ways(server, settings[_LISTENER]) for _ in range(-1, ROUNDS)][1:]  # one is not counted
            alone, beside = (statistics.median(one[way].p99 for one in rounds) for way in (0, 1))
            more = statistics.median((one[1].cpu - one[0].cpu) / (_RATE * _SECONDS) for one in rounds)
            print(
                f"  {name:8} p99 {alone:.2f} ms, {beside:.2f} ms beside them: {beside / alone:.2f}x; "
                f"{more * 1e6:.0f} µs of the server's CPU for each; {load()}",
                flush=True,
            )


def _both_ways(server: SecuredServer, settings: Mapping[str, str]) -> tuple[_Round, _Round]:
    return _round(server, settings, is_flooded=False), _round(server, settings, is_flooded=True)


def _round(server: SecuredServer, settings: Mapping[str, str], *, is_flooded: bool) -> _Round:
    address = server.at(_LISTENER)
    topic = new_topic(server)
    before = cpu_of(server.pid)
    flood = None
    if is_flooded:
        words = ("-m", "tests.broker.security.failing_logins", address, str(_RATE), str(_SECONDS))
        flood = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
    try:
        latency = _perf(address, topic, settings)
    finally:
        if flood is not None:
            print(f"    {flood.communicate()[0].strip()}", flush=True)
    return _Round(latency, cpu_of(server.pid) - before)


def _perf(address: str, topic: str, settings: Mapping[str, str]) -> float:
    properties = [word for key, value in settings.items() for word in ("-X", f"{key}={value}")]
    rate = ("--throughput", str(_RATE), "-n", str(_RATE * _SECONDS), "--record-size", "100", "--linger-ms", "0")
    command = seglog("perf", "produce", *rate, "--json", "-t", topic, "-b", address, *properties)
    out = subprocess.run(command, stdout=subprocess.PIPE, env=ENVIRONMENT, check=True).stdout
    latencies: Any = json.loads(out)["latencyMs"]
    return float(latencies["p99"])


if __name__ == "__main__":
    main()
