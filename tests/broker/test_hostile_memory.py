"""Clients that announce large requests and do not send them: they cost no memory, and delay nobody.

The server is a process of its own; its memory is what the kernel says.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress

import pytest

from seglog.protocol.apis import ApiKey
from seglog.records.record import NewRecord, encode_batch
from tests.broker.broker_thread import Wire
from tests.broker.served_broker import MEGABYTE, ServedBroker
from tests.kit.memory import directory_in_memory
from tests.kit.waiting import wait_until

TOPIC = "large"
ANNOUNCED = 50 * MEGABYTE
MOST_MEMORY = 300 * MEGABYTE
SLOW = 10.0
"""Seconds: the machine may have much else to do. These clients made others wait for minutes."""
SETTINGS = {"max.connection.creation.rate": "1000000", "log.segment.delete.delay.ms": "0"}
HEAD = struct.pack(">hhih", ApiKey.PRODUCE, 9, 1, -1)


@pytest.fixture(scope="module")
def served() -> Iterator[ServedBroker]:
    with (
        directory_in_memory() as path,
        ServedBroker(path, SETTINGS, log_level="info") as running,
    ):
        with Wire(running.bootstrap) as wire:
            configs = [
                {"name": "max.message.bytes", "value": str(60 * MEGABYTE)},
                {"name": "segment.bytes", "value": str(64 * MEGABYTE)},
                {"name": "retention.bytes", "value": "1"},
            ]
            topic = {"name": TOPIC, "num_partitions": 1, "replication_factor": 1, "configs": configs}
            wire.ask(ApiKey.CREATE_TOPICS, topics=[topic], timeout=30_000, validate_only=False)
            assert produce(wire, 1000) < SLOW
        yield running


def produce(wire: Wire, size: int) -> float:
    """Seconds until a batch of ``size`` bytes is acknowledged."""
    records = bytes(encode_batch([NewRecord(bytes(size), None, 1)]))
    data = [{"name": TOPIC, "partition_data": [{"index": 0, "records": records}]}]
    begun = time.monotonic()
    answer = wire.ask(ApiKey.PRODUCE, 9, acks=-1, timeout=30_000, topic_data=data)
    assert answer.responses[0].partition_responses[0].error_code == 0
    return time.monotonic() - begun


def announce(served: ServedBroker, sent: int) -> socket.socket:
    """A Produce request of 50 MB, of which ``sent`` bytes come."""
    connection = served.connect()
    connection.settimeout(1)
    with suppress(TimeoutError):  # the server does not read all of them
        connection.sendall((struct.pack(">i", ANNOUNCED) + HEAD + bytes(sent))[:sent])
    return connection


@pytest.mark.parametrize("number", [60, 600])
def test_large_requests_that_are_announced_and_not_sent_take_no_memory(served: ServedBroker, number: int) -> None:
    before = served.memory
    for _ in range(3):
        with ExitStack() as stack:
            for _ in range(number):
                stack.enter_context(closing(announce(served, 3000 // 60)))
            with Wire(served.bootstrap) as wire:
                produce(wire, 1000)
            assert served.memory < MOST_MEMORY
        assert served.has_come_to_rest()
    assert served.memory - before < 30 * MEGABYTE
    served.check_quiet()


def test_announced_but_unsent_requests_do_not_delay_other_clients(served: ServedBroker) -> None:
    with ExitStack() as stack, Wire(served.bootstrap) as wire:
        for _ in range(20):
            stack.enter_context(closing(announce(served, 50)))
        assert produce(wire, 200_000) < SLOW


def test_sixty_requests_that_stop_at_a_tenth_do_not_stop_another(served: ServedBroker) -> None:
    before, began = served.memory, time.monotonic()
    with ExitStack() as stack, Wire(served.bootstrap) as wire:
        alone = produce(wire, 50 * MEGABYTE)
        for _ in range(60):
            stack.enter_context(closing(announce(served, 5 * MEGABYTE)))
        beside = produce(wire, 50 * MEGABYTE)
        print(f"50 MB alone {alone:.3f} s, beside sixty unfinished requests {beside:.3f} s")
        assert beside < 5 * alone + SLOW
    assert served.has_come_to_rest()
    wait_until(lambda: served.memory - before < 100 * MEGABYTE, "memory is given back")
    said = [line for line in served.log.read_text().splitlines() if "queued.max.request.bytes" in line]
    minutes = (time.monotonic() - began) // 60
    assert 1 <= len(said) <= 1 + minutes, said  # one line a minute from one address
    served.check_quiet()
