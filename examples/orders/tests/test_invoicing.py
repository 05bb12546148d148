"""The service as it should work, each test on a broker that is as new."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from confluent_kafka import Producer
from orders.invoicing import ORDERS, Invoicing, OrderDesk

from seglog.testing import Broker

Invoices = Callable[[], list[dict[str, Any]]]
Start = Callable[..., Invoicing]


def handle(workers: list[Invoicing], count: int) -> None:
    """Let the workers run until together they have written so many invoices."""
    while count > 0:
        for worker in workers:
            count -= worker.run_once(0.2)
    assert count == 0


def test_each_order_has_its_invoice(desk: OrderDesk, start_invoicing: Start, invoices: Invoices) -> None:
    desk.order("ann", "tea", 3, 250)
    desk.order("bob", "cup", 1, 900)
    assert desk.close() == 0
    handle([start_invoicing()], 2)
    assert sorted(invoice["total"] for invoice in invoices()) == [750, 900]


def test_nothing_is_left_of_other_tests(start_invoicing: Start, invoices: Invoices) -> None:
    assert start_invoicing().run_once(0.3) == 0
    assert invoices() == []


def test_a_customers_invoices_are_in_order(desk: OrderDesk, start_invoicing: Start, invoices: Invoices) -> None:
    for number in range(1, 21):
        desk.order("ann", "tea", number, 100)
        desk.order("bob", "cup", number, 100)
    assert desk.close() == 0
    handle([start_invoicing(), start_invoicing()], 40)
    of_ann = [invoice["total"] for invoice in invoices() if invoice["customer"] == "ann"]
    assert of_ann == [100 * number for number in range(1, 21)]


def test_nonsense_is_counted_and_does_not_stop_it(
    seglog_broker: Broker, desk: OrderDesk, start_invoicing: Start, invoices: Invoices
) -> None:
    producer = Producer({"bootstrap.servers": seglog_broker.bootstrap})
    for value in (b"", b"{", b'{"customer": "eve"}', b"[]"):
        producer.produce(ORDERS, key=b"ann", value=value)
    assert producer.flush(60) == 0
    desk.order("ann", "tea", 1, 250)
    assert desk.close() == 0
    worker = start_invoicing()
    handle([worker], 1)
    assert (worker.rejected, len(invoices())) == (4, 1)


def test_another_worker_goes_on_where_one_has_stopped(
    desk: OrderDesk, start_invoicing: Start, invoices: Invoices
) -> None:
    desk.order("ann", "tea", 1, 100)
    assert desk.close() == 0
    first = start_invoicing()
    handle([first], 1)
    first.close()
    desk.order("ann", "tea", 2, 100)
    assert desk.close() == 0
    handle([start_invoicing()], 1)
    assert [invoice["total"] for invoice in invoices()] == [100, 200]
