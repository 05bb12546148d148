"""A stream over the files of a running broker: carriers' delays in windows of 15 minutes."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from demo.flights import MISSING
from demo.produce import TOPIC
from demo.questions import Delays

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MINUTES: Final = 15
_TABLE: Final = "delays"


class Window(NamedTuple):
    """A carrier and the minute, since 1970, at which its window begins."""

    carrier: str
    minute: int


class Run(NamedTuple):
    """One run of the stream: its micro-batches and rows, and the windows at its end."""

    batches: int
    rows: int
    windows: Mapping[Window, Delays]


def run_stream(spark: SparkSession, path: str, checkpoint: Path, meanwhile: Callable[[], object]) -> Run:
    """Start the stream, do ``meanwhile``, and stop it when it has read everything. Its state is in ``checkpoint``."""
    from pyspark.sql import functions

    flights = (
        spark.readStream.format("seglog")
        .option("path", path)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .load()
    )
    grouped = flights.selectExpr(
        "cast(headers[0].value as string) as carrier",
        "cast(get_json_object(cast(value as string), '$.dep_delay') as int) as dep_delay",
        f"window(timestamp, '{MINUTES} minutes') as window",
    ).groupBy("carrier", "window")
    delays = grouped.agg(
        functions.count("*").alias("flights"),
        functions.count("dep_delay").alias("departed"),
        functions.sum("dep_delay").alias("minutes"),
    )
    query = (
        delays.writeStream.format("memory")
        .queryName(_TABLE)
        .outputMode("complete")
        .option("checkpointLocation", str(checkpoint))
        .start()
    )
    try:
        meanwhile()
        query.processAllAvailable()
    finally:
        query.stop()
    progress = [one for one in query.recentProgress if one["numInputRows"]]
    found = spark.sql(
        f"select carrier, unix_seconds(window.start) div 60 as minute, flights, departed, minutes from {_TABLE}"
    ).toArrow()
    columns = [found.column(name).to_pylist() for name in ("carrier", "minute", *Delays._fields)]
    windows = {
        Window(carrier, minute): Delays(count, departed, late or 0)
        for carrier, minute, count, departed, late in zip(*columns, strict=True)
    }
    return Run(len(progress), sum(one["numInputRows"] for one in progress), windows)


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
