"""A topic of Kafka's into Arrow: by `seglog.scan`, by confluent-kafka's ``consume`` and by kafkarrow, turn about.

The columns are those that the slowest of the three has: key, value, topic, partition, offset, timestamp. All sides end
with one pyarrow Table. ``pip install kafkarrow`` for the third one; without it, it is left out.

    python -m bench scan
    SEGLOG_BENCH_ROWS=4000000 python -m bench scan
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import pyarrow as pa

import seglog
from bench.kafka import BROKER, QUIET, describe
from bench.segments import rounds
from bench.sides import Cost, in_turn
from tests.kafka import tools
from tests.kafka.node import KafkaNode

_VALUE_BYTES: Final = 100
_PARTITIONS: Final = 2
_COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp")
_AT_ONCE: Final = 10_000
_POOL: Final = 8192
_FIELDS: Final = {
    "id": "long", "flight": "int", "carrier": "string", "origin": "string", "dest": "string", "delay": "double",
    "distance": "float", "late": "boolean", "tail": "string", "seats": "int",
}  # fmt: skip
_AVRO: Final = {
    "type": "record",
    "name": "Flight",
    "fields": [{"name": name, "type": kind} for name, kind in _FIELDS.items()],
}
_TIMESTAMP: Final = pa.timestamp("ms", tz="UTC")


def main() -> None:
    count = int(os.environ.get("SEGLOG_BENCH_ROWS", "2000000"))
    typed = count // 4
    print(f"a topic into Arrow, medians of {rounds()} rounds; {describe((*BROKER, QUIET))}")
    with _kafka() as bootstrap:
        _fill(bootstrap, "bytes", count, _random_values())
        _fill(bootstrap, "avro", typed, _avro_values())
        sides: dict[str, Callable[[], int]] = {
            "seglog.scan": partial(_scan, bootstrap, "bytes"),
            "confluent-kafka": partial(_confluent, bootstrap, "bytes", count),
        }
        if importlib.util.find_spec("kafkarrow"):
            sides["kafkarrow"] = partial(_kafkarrow, bootstrap, "bytes", count)
        print(f"values of {_VALUE_BYTES} B, {_PARTITIONS} partitions, {count:,} records", flush=True)
        costs = in_turn({name: _checked(side, count) for name, side in sides.items()}, rounds())
        _show(costs, count, {"confluent-kafka": "8x", "kafkarrow": "2x"})
        print(f"ten fields of Avro, {typed:,} records", flush=True)
        both = {
            "seglog.scan": _checked(partial(_scan_avro, bootstrap), typed),
            "fastavro over confluent-kafka": _checked(partial(_fastavro, bootstrap, typed), typed),
        }
        _show(in_turn(both, rounds()), typed, {"fastavro over confluent-kafka": "10x"})


@contextmanager
def _kafka() -> Iterator[str]:
    with (
        tempfile.TemporaryDirectory(prefix="seglog-bench-") as name,
        KafkaNode(Path(name) / "kafka", jvm=(*BROKER, QUIET)) as node,
    ):
        yield node.bootstrap


def _random_values() -> list[bytes]:
    source = random.Random(1)
    return [source.randbytes(_VALUE_BYTES) for _ in range(_POOL)]


def _avro_values() -> list[bytes]:
    import fastavro

    schema = fastavro.parse_schema(_AVRO)
    found = []
    for number in range(_POOL):
        out = io.BytesIO()
        row = {
            "id": number * 7919,
            "flight": number % 5000,
            "carrier": ("UA", "AA", "B6")[number % 3],
            "origin": ("EWR", "LGA", "JFK")[number % 3],
            "dest": f"D{number % 100:02}",
            "delay": number / 8,
            "distance": float(number % 3000),
            "late": number % 4 == 0,
            "tail": f"N{number:05}",
            "seats": number % 400,
        }
        fastavro.schemaless_writer(out, schema, row)
        found.append(out.getvalue())
    return found


def _fill(bootstrap: str, topic: str, count: int, values: list[bytes]) -> None:
    tools.topics(bootstrap, "--create", "--topic", topic, "--partitions", str(_PARTITIONS))
    settings = {"bootstrap.servers": bootstrap, "linger.ms": 50, "queue.buffering.max.messages": 1_000_000}
    producer = confluent_kafka.Producer(settings)
    for number in range(count):
        producer.produce(topic, values[number % _POOL], key=b"N%05d" % (number % 4000), partition=number % _PARTITIONS)
        if number % _AT_ONCE == 0:
            producer.poll(0)
            while len(producer) > 500_000:
                producer.poll(0.1)
    if producer.flush(120):
        raise RuntimeError(f"{bootstrap} has not acknowledged all of {count} records in time")


def _checked(side: Callable[[], int], count: int) -> Callable[[], None]:
    def run() -> None:
        found = side()
        if found != count:
            raise RuntimeError(f"{found} records of {count}")

    return run


def _show(costs: dict[str, Cost], count: int, wanted: dict[str, str]) -> None:
    for name, cost in costs.items():
        rate = count / cost.wall / 1e6
        print(f"  {name:32} {cost.wall:6.2f} s  {rate:6.2f} M records/s  {cost.cpu:6.2f} s of CPU", flush=True)
    for name, ratio in wanted.items():
        if name in costs:
            times = costs[name].wall / costs["seglog.scan"].wall
            print(f"  {name} takes {times:5.2f} times as long, asked {ratio}")


# Sides


def _scan(bootstrap: str, topic: str) -> int:
    rows: int = seglog.scan(bootstrap, topics=topic, columns=_COLUMNS).read_all().num_rows
    return rows


def _scan_avro(bootstrap: str) -> int:
    schema = {"valueSchema": json.dumps(_AVRO)}
    table = seglog.scan(bootstrap, topics="avro", columns=["value"], value_format="avro", format_options=schema)
    rows: int = table.read_all().num_rows
    return rows


@contextmanager
def _assigned(bootstrap: str, topic: str) -> Iterator[confluent_kafka.Consumer]:
    """A consumer at the beginning of all partitions. It fetches as much at a time as it likes to."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(_PARTITIONS)])
    try:
        yield consumer
    finally:
        consumer.close()


def _messages(bootstrap: str, topic: str, count: int) -> Iterator[list[Any]]:
    with _assigned(bootstrap, topic) as consumer:
        left = count
        while left:
            found = consumer.consume(min(_AT_ONCE, left), timeout=30)
            if not found:
                raise RuntimeError(f"{left} records are missing")
            left -= len(found)
            yield found


def _confluent(bootstrap: str, topic: str, count: int) -> int:
    """The code that a user writes without seglog."""
    batches = []
    for found in _messages(bootstrap, topic, count):
        columns = [
            pa.array([one.key() for one in found], pa.binary()),
            pa.array([one.value() for one in found], pa.binary()),
            pa.array([one.topic() for one in found], pa.string()),
            pa.array([one.partition() for one in found], pa.int32()),
            pa.array([one.offset() for one in found], pa.int64()),
            pa.array([one.timestamp()[1] for one in found], _TIMESTAMP),
        ]
        batches.append(pa.RecordBatch.from_arrays(columns, names=list(_COLUMNS)))
    return pa.Table.from_batches(batches).num_rows


def _kafkarrow(bootstrap: str, topic: str, count: int) -> int:
    kafkarrow: Any = importlib.import_module("kafkarrow")
    manager = kafkarrow.ConsumerManager(
        config={"bootstrap.servers": bootstrap}, topics=[kafkarrow.SourceTopic.from_earliest(topic)]
    )
    batches, rows = [], 0
    while rows < count:
        batches.append(manager.poll(timeout_ms=1000))
        rows += batches[-1].num_rows
    return pa.Table.from_batches(batches).num_rows


def _fastavro(bootstrap: str, count: int) -> int:
    """The code that a user writes without seglog."""
    import fastavro

    schema = fastavro.parse_schema(_AVRO)
    batches = []
    for found in _messages(bootstrap, "avro", count):
        rows = [fastavro.schemaless_reader(io.BytesIO(one.value()), schema, None) for one in found]
        batches.append(pa.RecordBatch.from_struct_array(pa.array(rows)))
    return pa.Table.from_batches(batches).num_rows
