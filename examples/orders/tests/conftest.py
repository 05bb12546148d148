"""What the tests of this service need."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer
from orders.invoicing import INVOICES, ORDERS, Invoicing, OrderDesk

from seglog.testing import Broker


@pytest.fixture(scope="session")
def seglog_topics() -> dict[str, int]:
    return {ORDERS: 3, INVOICES: 1}


@pytest.fixture
def desk(seglog_broker: Broker) -> OrderDesk:
    return OrderDesk(seglog_broker.bootstrap)


@pytest.fixture
def start_invoicing(seglog_broker: Broker) -> Iterator[Callable[..., Invoicing]]:
    """Starts workers, which are closed in the end."""
    workers: list[Invoicing] = []

    def start(**settings: Any) -> Invoicing:
        workers.append(Invoicing(seglog_broker.bootstrap, **settings))
        return workers[-1]

    yield start
    for worker in workers:
        worker.close()


@pytest.fixture
def invoices(seglog_broker: Broker) -> Callable[[], list[dict[str, Any]]]:
    """All invoices there are, read anew each time."""

    def read() -> list[dict[str, Any]]:
        consumer = Consumer(
            {
                "bootstrap.servers": seglog_broker.bootstrap,
                "group.id": "look",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
            }
        )
        consumer.subscribe([INVOICES])
        found = []
        while (message := consumer.poll(60)) is not None and message.error() is None:
            found.append(json.loads(message.value()))
        consumer.close()
        return found

    return read
