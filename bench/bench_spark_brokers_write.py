"""Writing by Spark through a broker: by us, once and at least once, beside the connector's at-least-once write.

The rows lie in Spark's memory, so that making them is not measured.

python -m bench spark_brokers_write
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from pyspark.sql import DataFrame

from bench.connector import CORES, Beside, beside, describe, noop, records, rows
from bench.segments import rounds
from bench.sides import Cost, in_turn

_SIZES: Final = (100, 1000)
_MICRO_BATCHES: Final = 20
_KINDS: Final = ("exactly-once", "at-least-once")


def main() -> None:
    print(f"writing through Kafka, medians of {rounds()} rounds; {describe()}")
    with beside() as both:
        for value_bytes in _SIZES:
            count = records(value_bytes)
            for partitions in (1, 4):
                print(f"values of {value_bytes} B, {count:,} records, {partitions} partitions", flush=True)
                frame = rows(both.spark, count, value_bytes).persist()
                noop(frame)
                _show(count, in_turn(_sides(both, f"w{value_bytes}-{partitions}", frame, partitions), rounds()))
                frame.unpersist(blocking=True)
        _micro_batches(both)


def _sides(both: Beside, topic: str, frame: DataFrame, partitions: int) -> dict[str, Callable[[], object]]:
    both.create(topic, partitions)

    def ours(delivery: str) -> None:
        writer = frame.write.format("seglog").option("kafka.bootstrap.servers", both.node.bootstrap)
        writer.option("topic", topic).option("delivery", delivery).mode("append").save()

    sides: dict[str, Callable[[], object]] = {"connector": lambda: both.fill(topic, frame)}
    return sides | {f"seglog, {kind}": partial(ours, kind) for kind in _KINDS}


def _show(count: int, costs: dict[str, Cost]) -> None:
    for name, cost in costs.items():
        print(f"  {name:24} {cost.wall:6.2f} s  {count / cost.wall / 1e6:5.2f} M rows/s")
    walls = {name: cost.wall for name, cost in costs.items()}
    ratios = [f"{kind} {walls['connector'] / walls[f'seglog, {kind}']:.2f}x" for kind in _KINDS]
    print(f"  beside the connector: {', '.join(ratios)}; asked 1.2x of exactly-once", flush=True)


def _micro_batches(both: Beside) -> None:
    """A stream of small micro-batches from one topic into another: what each takes, with source and sink."""
    both.create("micro")
    both.fill("micro", rows(both.spark, _MICRO_BATCHES * 100, 100))
    medians = {}
    for name, delivery in (("kafka", ""), *(("seglog", kind) for kind in _KINDS)):
        title = f"{name} {delivery}".strip()
        target = f"micro-{name}-{delivery or 'connector'}"
        both.create(target)
        reader = both.spark.readStream.format(name).option("kafka.bootstrap.servers", both.node.bootstrap)
        reader = reader.options(subscribe="micro", startingOffsets="earliest", maxOffsetsPerTrigger="100")
        writer = reader.load().select("key", "value").writeStream.format(name).trigger(availableNow=True)
        if delivery:
            writer = writer.option("delivery", delivery)
        writer = writer.option("kafka.bootstrap.servers", both.node.bootstrap).option("topic", target)
        query = writer.option("checkpointLocation", str(both.root / target)).start()
        query.awaitTermination()
        times = sorted(one["durationMs"]["triggerExecution"] for one in query.recentProgress if one["numInputRows"])
        medians[title] = times[len(times) // 2]
        print(
            f"micro-batches of 100 rows, {CORES} cores, {title}: median {medians[title]} ms of {len(times)}", flush=True
        )
    ratio = medians["seglog exactly-once"] / medians["kafka"]
    print(f"  exactly-once takes {ratio:.2f} of the connector's time, asked at most 1.5", flush=True)
