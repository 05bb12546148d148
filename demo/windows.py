"""A stream through brokers of which one is killed: carriers' delays in windows of 15 minutes, written back once.

A window is written when no flight of it can come any more: when the stream has seen a time `PATIENCE_DAYS` later. A
dead leader holds up its partition while the others go on, so the flights of the whole year may come in any order. The
closing record, behind the last flight, has a time that is late enough.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from demo.flights import MISSING
from demo.produce import TOPIC, Flight
from demo.questions import Delays

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MINUTES: Final = 15
WINDOWS: Final = "windows"
"""The topic that the stream writes."""
PATIENCE_DAYS: Final = 400
CLOSING: Final = Flight(None, b"closing", int(datetime.fromisoformat("2015-06-01T00:00:00Z").timestamp()) * 1000, [])
_RETRIES: Final = 60
"""Seconds in which the stream asks again for the leaders of partitions."""


class Window(NamedTuple):
    """A carrier and the minute, since 1970, at which its window begins."""

    carrier: str
    minute: int


class Run(NamedTuple):
    """One run of the stream: its micro-batches with rows, and the rows."""

    batches: int
    rows: int


def run_stream(spark: SparkSession, bootstrap: str, checkpoint: Path, meanwhile: Callable[[], object]) -> Run:
    """Start the stream, do ``meanwhile``, and stop it when it has read everything. Its state is in ``checkpoint``."""
    from pyspark.sql import functions

    flights = (
        spark.readStream.format("seglog")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("fetchOffset.numRetries", _RETRIES)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .load()
        .withWatermark("timestamp", f"{PATIENCE_DAYS} days")
    )
    grouped = flights.selectExpr(
        "cast(headers[0].value as string) as carrier",
        "cast(get_json_object(cast(value as string), '$.dep_delay') as int) as dep_delay",
        f"window(timestamp, '{MINUTES} minutes') as window",
    ).groupBy("carrier", "window")
    delays = grouped.agg(
        functions.count("*").alias("flights"),
        functions.count("dep_delay").alias("departed"),
        functions.coalesce(functions.sum("dep_delay"), functions.lit(0)).alias("minutes"),
    )
    rows = delays.selectExpr(
        "carrier as key",
        "to_json(struct(carrier, unix_seconds(window.start) div 60 as minute, flights, departed, minutes)) as value",
    )
    query = (
        rows.writeStream.format("seglog")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", WINDOWS)
        .option("checkpointLocation", str(checkpoint))
        .start()
    )
    try:
        meanwhile()
        query.processAllAvailable()
    finally:
        query.stop()
    progress = [one for one in query.recentProgress if one["numInputRows"]]
    return Run(len(progress), sum(one["numInputRows"] for one in progress))


def read_windows(values: Counter[bytes]) -> tuple[dict[Window, Delays], list[str]]:
    """The windows of a topic's records, and as text those that are there more than once."""
    windows: dict[Window, Delays] = {}
    wrong = []
    for value, times in values.items():
        record = json.loads(value)
        window = Window(record["carrier"], record["minute"])
        if times > 1 or window in windows:
            wrong.append(f"windows: {window} is there more than once")
        windows[window] = Delays(record["flights"], record["departed"], record["minutes"])
    return windows, wrong


def count_source(table: bytes) -> Mapping[Window, Delays]:
    """The same windows, computed from the CSV."""
    rows = csv.reader(io.StringIO(table.decode("utf-8")))
    columns = next(rows)
    carrier, delay, hour, minute = map(columns.index, ("carrier", "dep_delay", "time_hour", "minute"))
    hours: dict[str, int] = {}
    sums: dict[Window, list[int]] = defaultdict(lambda: [0, 0, 0])
    for row in rows:
        if (start := hours.get(row[hour])) is None:
            start = hours[row[hour]] = int(datetime.fromisoformat(row[hour]).timestamp()) // 60
        found = sums[Window(row[carrier], start + int(row[minute]) // MINUTES * MINUTES)]
        found[0] += 1
        if row[delay] != MISSING:
            found[1] += 1
            found[2] += int(row[delay])
    return {window: Delays(*found) for window, found in sums.items()}
