"""Orders in, invoices out, with stock confluent-kafka."""

from __future__ import annotations

import json
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer

ORDERS = "orders"
INVOICES = "invoices"


class OrderDesk:
    """Takes orders. The customer is the key, so that a customer's orders stay in order."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5})

    def order(self, customer: str, item: str, quantity: int, price: int) -> None:
        """``price`` is that of one, in cents."""
        value = json.dumps({"customer": customer, "item": item, "quantity": quantity, "price": price})
        self._producer.produce(ORDERS, key=customer, value=value)

    def close(self, timeout: float = 60) -> int:
        """Wait until all orders are taken; how many are not."""
        return int(self._producer.flush(timeout))


class Invoicing:
    """Writes an invoice for each order. Offsets are committed after their invoices: at least once."""

    def __init__(self, bootstrap: str, group: str = "invoicing", *, session_timeout_ms: int = 10_000) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": session_timeout_ms,
            }
        )
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0})
        self._consumer.subscribe([ORDERS])
        self.rejected = 0

    def run_once(self, timeout: float = 1.0) -> int:
        """Handle what has come in; the number of invoices written. Orders that make no sense are counted."""
        messages = self._consumer.consume(100, timeout)
        invoices = 0
        for message in messages:
            if message.error() is not None:
                raise KafkaException(message.error())
            try:
                invoice = invoice_of(json.loads(message.value() or b""))
            except (KeyError, TypeError, ValueError):
                self.rejected += 1
                continue
            self._producer.produce(INVOICES, key=message.key(), value=json.dumps(invoice))
            invoices += 1
        if messages:
            if self._producer.flush(30):
                raise TimeoutError("invoices could not be written")
            self._consumer.commit(asynchronous=False)
        return invoices

    def close(self) -> None:
        self._consumer.close()


def invoice_of(order: dict[str, Any]) -> dict[str, Any]:
    """
    >>> invoice_of({"customer": "ann", "item": "tea", "quantity": 3, "price": 250})
    {'customer': 'ann', 'text': '3 x tea', 'total': 750}
    """
    quantity, price = int(order["quantity"]), int(order["price"])
    if quantity < 1:
        raise ValueError("nothing was ordered")
    return {"customer": order["customer"], "text": f"{quantity} x {order['item']}", "total": quantity * price}
