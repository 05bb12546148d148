"""What the service does when its broker hangs, goes away and comes back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from orders.invoicing import Invoicing, OrderDesk

from seglog.testing import Broker

Invoices = Callable[[], list[dict[str, Any]]]
Start = Callable[..., Invoicing]


def test_orders_wait_while_the_broker_hangs(seglog_broker: Broker, desk: OrderDesk) -> None:
    seglog_broker.pause()
    desk.order("ann", "tea", 1, 100)
    assert desk.close(0.3) == 1  # it is not lost, it waits
    seglog_broker.resume()
    assert desk.close() == 0


def test_orders_survive_a_restart_of_the_broker(
    seglog_broker: Broker, desk: OrderDesk, start_invoicing: Start, invoices: Invoices
) -> None:
    worker = start_invoicing()
    desk.order("ann", "tea", 1, 100)
    assert desk.close() == 0
    seglog_broker.stop()
    desk.order("ann", "tea", 2, 100)
    assert desk.close(0.2) == 1
    seglog_broker.start()
    assert desk.close() == 0
    written = 0
    while written < 2:
        written += worker.run_once(0.2)
    assert [invoice["total"] for invoice in invoices()] == [100, 200]
