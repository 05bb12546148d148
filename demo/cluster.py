"""Three brokers, of which one is killed while the flights flow: ``seglog cluster up`` as a child, as anybody would
start it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from os.path import relpath
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from demo.produce import CLIENT, PARTITIONS, TOPIC, Flight

NODES: Final = 3
SETTINGS: Final = {"broker.session.timeout.ms": "3000", "offsets.topic.num.partitions": "4"}
"""A broker that is dead need not be waited for as long as in a real cluster (9 s)."""
_PATIENCE: Final = 60
_POLL: Final = 200


class Flown(NamedTuple):
    """``pause``: the longest time, in seconds, in which nothing was acknowledged."""

    acknowledged: int
    seconds: float
    pause: float
    killed_at: int


class Cluster:
    """``with Cluster(directory, errors) as cluster``: it runs until then. ``ready`` is what it said when it was."""

    def __init__(self, directory: Path, errors: Path) -> None:
        self._directory = directory
        self._errors = errors
        self._process: subprocess.Popen[bytes]
        self.ready: dict[str, Any] = {}

    @property
    def command(self) -> list[str]:
        settings = [part for item in SETTINGS.items() for part in ("--set", "=".join(item))]
        listen = ["--listen", "127.0.0.1:0"]
        return ["cluster", "up", "--nodes", str(NODES), "--data-dir", relpath(self._directory), *listen, *settings]

    @property
    def bootstrap(self) -> str:
        return str(self.ready["bootstrap"])

    def __enter__(self) -> Self:
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "seglog", *self.command, "--json"],
                stdout=subprocess.PIPE,
                stderr=errors,
                process_group=0,  # Ctrl-C is for the demo, which then stops it
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the cluster did not start: {self._errors.read_text()}")
        self.ready = json.loads(line)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_PATIENCE)
        finally:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()

    def kill(self, node_id: int) -> None:
        """kill -9."""
        pid = next(broker["pid"] for broker in self.ready["brokers"] if broker["node"] == node_id)
        os.kill(pid, signal.SIGKILL)


def leader_of_first(bootstrap: str) -> int:
    """Who leads partition 0 of the flights."""
    from confluent_kafka.admin import AdminClient

    metadata = AdminClient({"bootstrap.servers": bootstrap}).list_topics(TOPIC, timeout=_PATIENCE)
    return int(metadata.topics[TOPIC].partitions[0].leader)


def fly(cluster: Cluster, records: Sequence[Flight], victim: int) -> Flown:
    """Produce all flights with acks=all; when a third of them is acknowledged, kill a broker."""
    from confluent_kafka import KafkaError, Message, Producer

    start = last = time.perf_counter()
    pause, acknowledged, killed_at = 0.0, 0, 0

    def told(error: KafkaError | None, _: Message) -> None:
        nonlocal last, pause, acknowledged, killed_at
        if error is not None:
            raise RuntimeError(f"a flight was not taken: {error}")
        now = time.perf_counter()
        last, pause = now, max(pause, now - last)
        acknowledged += 1
        if acknowledged >= len(records) // 3 and not killed_at:
            killed_at = acknowledged
            cluster.kill(victim)

    # A flight that is not acknowledged at once is sent again by the client, and never twice: idempotence.
    settings = {**CLIENT, "acks": "all", "delivery.report.only.error": False, "log_level": 0}
    producer = Producer({"bootstrap.servers": cluster.bootstrap, **settings})
    for number, (key, value, timestamp, headers) in enumerate(records):
        while True:
            try:
                producer.produce(TOPIC, value, key, timestamp=timestamp, headers=headers, on_delivery=told)
                break
            except BufferError:  # the client holds as much as it may
                producer.poll(0.1)
        if number % _POLL == 0:
            producer.poll(0)
    left = producer.flush(_PATIENCE)
    if left:
        raise RuntimeError(f"{left:,} flights were not taken")
    return Flown(acknowledged, time.perf_counter() - start, pause, killed_at)


def read_all(bootstrap: str, count: int) -> Counter[bytes]:
    """Every flight that consumers see, and how often: until there are ``count``, or no more come."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "demo", "enable.auto.commit": False, "log_level": 0}
    )
    consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
    found: Counter[bytes] = Counter()
    read = 0
    until = time.monotonic() + _PATIENCE
    while read < count and time.monotonic() < until:
        messages = consumer.consume(10_000, 1.0)
        values = [message.value() or b"" for message in messages if message.error() is None]
        found.update(values)
        read += len(values)
    consumer.close()
    return found


def differences(found: Counter[bytes], records: Iterable[Flight]) -> list[str]:
    """What is missing or there too often, in words."""
    expected = Counter(flight.value for flight in records)
    missing, extra = expected - found, found - expected
    wrong = []
    if missing:
        wrong.append(f"three brokers: {missing.total():,} acknowledged flights are missing: {next(iter(missing))!r}")
    if extra:
        wrong.append(f"three brokers: {extra.total():,} flights are there too often: {next(iter(extra))!r}")
    return wrong
