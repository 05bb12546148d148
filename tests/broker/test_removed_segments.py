"""A broker closes the files of segments that compaction and retention replace, while clients write and read."""

from __future__ import annotations

import gc
import os
import random
import sys
import threading
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.broker.broker_thread import RunningNode
from tests.broker.python_clients import NewTopic
from tests.kit.memory import directory_in_memory
from tests.kit.topics import create_topics
from tests.kit.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
SETTINGS = {
    "log.initial.task.delay.ms": "100",
    "log.cleaner.backoff.ms": "100",
    "log.retention.check.interval.ms": "200",
    "log.segment.delete.delay.ms": "100",
}
SEGMENT = 1 << 20
TURNS = 3
"""Segments that must have been removed before the test ends: as many times the first one changes."""


def deleted_segments(logs: Path) -> list[str]:
    """Of this broker: others in the process have topics of the same name."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
        if path.startswith(f"{logs}/t-0/") and path.endswith(" (deleted)"):
            found.append(path)
    return found


@pytest.mark.parametrize(
    "policy",
    [
        {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"},
        {"cleanup.policy": "delete", "retention.bytes": str(2 * SEGMENT)},
    ],
    ids=["compacted", "expired"],
)
def test_no_removed_segment_stays_open(policy: dict[str, str]) -> None:
    """No garbage is collected meanwhile: the last reader closes a file."""
    gc.disable()
    try:
        with directory_in_memory() as path, RunningNode(path / "logs", SETTINGS) as running:
            address = running.bootstrap
            config = {**policy, "segment.bytes": str(SEGMENT)}
            create_topics(address, NewTopic("t", 1, 1, config=config))
            over = threading.Event()
            clients = [threading.Thread(target=_read, args=(address, over)) for _ in range(2)]
            clients.append(threading.Thread(target=_write, args=(address, over)))
            for client in clients:
                client.start()
            try:
                for _ in range(TURNS):
                    _await_replacement(path)
            finally:
                over.set()
                for client in clients:
                    client.join()
            wait_until(lambda: not deleted_segments(path / "logs"), "removed segments are closed")
    finally:
        gc.enable()


def _await_replacement(path: Path) -> None:
    before = _segments(path)[:2]
    wait_until(lambda: _segments(path)[:2] != before, "the first segments are replaced")


def _segments(path: Path) -> list[tuple[str, int]]:
    directory = path / "logs" / "t-0"
    return [(one.name, one.inode()) for one in sorted(os.scandir(directory), key=str) if one.name.endswith(".log")]


def _write(address: str, over: threading.Event) -> None:
    producer = Producer({"bootstrap.servers": address, "log_level": 0})
    rng = random.Random(1)
    while not over.is_set():
        for _ in range(50):
            producer.produce("t", rng.randbytes(10_000), str(rng.randrange(100)))
        producer.flush()


def _read(address: str, over: threading.Event) -> None:
    """Everything, from the beginning, again and again."""
    while not over.is_set():
        consumer = Consumer(
            {"bootstrap.servers": address, "group.id": "none", "auto.offset.reset": "earliest", "log_level": 0}
        )
        consumer.assign([TopicPartition("t", 0, 0)])
        for _ in range(300):
            if over.is_set():
                break
            consumer.poll(0.1)
        consumer.close()
