"""Produces the flights as records of a topic, with a stock client."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Iterable
from datetime import datetime
from typing import Final, NamedTuple

from demo.flights import MISSING, NUMBERS

TOPIC: Final = "flights"
PARTITIONS: Final = 4
CONFIG: Final = {
    "retention.ms": "-1",  # else 2013 would be deleted at once: Kafka keeps a week
    "segment.bytes": "1048576",  # so that rolling shows
    "segment.ms": str(366 * 24 * 3600 * 1000),  # else each week of the year would start another one
}
CLIENT: Final = {
    "partitioner": "murmur2_random",  # where Kafka's own producer sends a key
    "compression.type": "zstd",
    "linger.ms": 20,
    "enable.idempotence": True,
    "delivery.report.only.error": True,
    "log_level": 0,  # a client that still exists when its broker is gone would say so on the screen
}
_PATIENCE: Final = 60
_POLL: Final = 10_000


class Flight(NamedTuple):
    """A record: key is the tail number or null, value the row as JSON, timestamp the scheduled departure in ms."""

    key: bytes | None
    value: bytes
    timestamp: int
    headers: list[tuple[str, str | bytes | None]]


def flights(table: bytes) -> list[Flight]:
    """The rows of the table in the order of their scheduled departure: ``time_hour``, in UTC, plus the minute."""
    rows = csv.reader(io.StringIO(table.decode("utf-8")))
    columns = next(rows)
    tail, hour, minute, carrier, origin = map(columns.index, ("tailnum", "time_hour", "minute", "carrier", "origin"))
    numbers, texts, hours = _Numbers(), _Texts(), _Hours()
    cells = [(f'"{name}":', numbers if name in NUMBERS else texts) for name in columns]
    found = []
    for row in rows:
        value = ",".join([name + kind[cell] for (name, kind), cell in zip(cells, row, strict=True)])
        found.append(
            Flight(
                None if row[tail] == MISSING else row[tail].encode(),
                f"{{{value}}}".encode(),
                hours[row[hour]] + int(row[minute]) * 60_000,
                [("carrier", row[carrier].encode()), ("origin", row[origin].encode())],
            )
        )
    found.sort(key=lambda flight: flight.timestamp)
    return found


class _Numbers(dict[str, str]):
    """Cells as JSON numbers, cached."""

    def __missing__(self, cell: str) -> str:
        self[cell] = text = "null" if cell == MISSING else str(int(cell))
        return text


class _Texts(dict[str, str]):
    """Cells as JSON strings."""

    def __missing__(self, cell: str) -> str:
        self[cell] = text = "null" if cell == MISSING else json.dumps(cell)
        return text


class _Hours(dict[str, int]):
    """ISO times as milliseconds since 1970."""

    def __missing__(self, cell: str) -> int:
        self[cell] = time = int(datetime.fromisoformat(cell).timestamp()) * 1000
        return time


def produce(bootstrap: str, records: Iterable[Flight]) -> float:
    """Send all flights; the seconds until all were acknowledged. Raises RuntimeError if one was not."""
    from confluent_kafka import KafkaError, Message, Producer

    start = time.perf_counter()
    failed: list[KafkaError | None] = []

    def refused(error: KafkaError | None, _: Message) -> None:
        failed.append(error)

    producer = Producer({"bootstrap.servers": bootstrap, **CLIENT})
    for number, (key, value, timestamp, headers) in enumerate(records):
        while True:
            try:
                producer.produce(TOPIC, value, key, timestamp=timestamp, headers=headers, on_delivery=refused)
                break
            except BufferError:  # the client holds as much as it may
                producer.poll(0.1)
        if number % _POLL == 0:
            producer.poll(0)
    left = producer.flush(_PATIENCE)
    if left or failed:
        raise RuntimeError(f"{len(failed) + left:,} flights were not taken: {failed[:1]}")
    return time.perf_counter() - start
