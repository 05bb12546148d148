"""Three brokers, one of which is killed while the flights flow: ``seglog cluster up`` as a child process."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from os.path import relpath
from pathlib import Path
from typing import Final, NamedTuple

from demo.child import PATIENCE, Child, settings_options
from demo.produce import CLIENT, TOPIC, Flight

NODES: Final = 3
SETTINGS: Final = {
    "broker.session.timeout.ms": "3000",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
}
"""A shorter session than in a real cluster (9 s), so that a dead broker is noticed sooner."""
_POLL: Final = 200


class Flown(NamedTuple):
    """``pause``: the longest time, in seconds, in which nothing was acknowledged."""

    acknowledged: int
    seconds: float
    pause: float
    killed_at: int


class Cluster(Child):
    """``with Cluster(directory, errors) as cluster``: runs within it and ends cleanly."""

    name = "cluster"
    ends_cleanly = True

    def __init__(self, directory: Path, errors: Path) -> None:
        super().__init__(errors)
        self._directory = directory

    @property
    def command(self) -> list[str]:
        where = ["--data-dir", relpath(self._directory), "--listen", "127.0.0.1:0"]
        return ["cluster", "up", "--nodes", str(NODES), *where, *settings_options(SETTINGS)]

    def kill(self, node_id: int) -> None:
        """Kill a broker with -9."""
        pid = next(broker["pid"] for broker in self.ready["brokers"] if broker["node"] == node_id)
        os.kill(pid, signal.SIGKILL)


def leader_of_first(bootstrap: str) -> int:
    """The leader of the flights' partition 0."""
    from confluent_kafka.admin import AdminClient

    metadata = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}).list_topics(TOPIC, timeout=PATIENCE)
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
    settings = {**CLIENT, "acks": "all", "delivery.report.only.error": False}
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
    left = producer.flush(PATIENCE)
    if left:
        raise RuntimeError(f"{left:,} flights were not taken")
    return Flown(acknowledged, time.perf_counter() - start, pause, killed_at)


def read_committed(bootstrap: str, topic: str) -> Counter[bytes]:
    """Each value that a consumer with ``read_committed`` sees from the first offset to the last, with its count."""
    from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

    settings = {"bootstrap.servers": bootstrap, "group.id": "demo", "enable.auto.commit": False, "log_level": 0}
    consumer = Consumer({**settings, "isolation.level": "read_committed", "enable.partition.eof": True})
    try:
        waiting = {*consumer.list_topics(topic, PATIENCE).topics[topic].partitions}
        consumer.assign([TopicPartition(topic, number, 0) for number in waiting])
        found: Counter[bytes] = Counter()
        until = time.monotonic() + PATIENCE
        while waiting:
            if time.monotonic() > until:
                raise RuntimeError(f"{topic}: partitions {sorted(waiting)} have not been read to their end")
            for message in consumer.consume(10_000, 1.0):
                error = message.error()
                if error is None:
                    found[message.value() or b""] += 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    waiting.discard(message.partition() or 0)
                else:
                    raise KafkaException(error)
    finally:
        consumer.close()
    return found


def differences(found: Counter[bytes], records: Iterable[Flight]) -> list[str]:
    """The flights that are missing or there too often, as text."""
    expected = Counter(flight.value for flight in records)
    missing, extra = expected - found, found - expected
    wrong = []
    if missing:
        wrong.append(f"three brokers: {missing.total():,} acknowledged flights are missing: {next(iter(missing))!r}")
    if extra:
        wrong.append(f"three brokers: {extra.total():,} flights are there too often: {next(iter(extra))!r}")
    return wrong
