"""Flights into a log directory by Spark: each half of them is one job, adopted once however often it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from demo.flights import MISSING, NUMBERS
from seglog.spark import to_log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC: Final = "flights"
AIRCRAFT: Final = "aircraft"
PARTITIONS: Final = 4
APPLICATION: Final = "flights-2013"
_SMALL_SEGMENTS: Final = {
    "topic.segment.bytes": 1 << 20,  # so that rolling shows
    "topic.segment.ms": 366 * 24 * 3600 * 1000,  # else each week of the year would start another one
}
FLIGHTS: Final[dict[str, str | int]] = {
    "compression.type": "zstd",
    "topic.retention.ms": -1,  # else 2013 would be deleted at once: Kafka keeps a week
    **_SMALL_SEGMENTS,
}
LATEST: Final[dict[str, str | int]] = {
    "compression.type": "zstd",
    "topic.cleanup.policy": "compact",
    **_SMALL_SEGMENTS,
}


def read_flights(spark: SparkSession, table: Path) -> DataFrame:
    """The table's rows as records: key, value, timestamp, headers.

    Key is the tail number, null where it is missing; value the row as compact JSON, numbers as numbers; timestamp the
    scheduled departure (``time_hour`` is UTC, plus the minute); headers are carrier and origin.
    """
    rows = spark.read.csv(str(table), header=True, nullValue=MISSING)
    typed = rows.selectExpr(
        *(f"cast({name} as int) as {name}" if name in NUMBERS else name for name in rows.columns),
        "to_timestamp(time_hour) + make_interval(0, 0, 0, 0, 0, cast(minute as int), 0) as timestamp",
    )
    return typed.selectExpr(
        "cast(tailnum as binary) as key",
        f"to_json(struct({', '.join(rows.columns)}), map('ignoreNullFields', 'false')) as value",
        "timestamp",
        "array(struct('carrier' as key, cast(carrier as binary) as value),"
        " struct('origin' as key, cast(origin as binary) as value)) as headers",
    )


def middle_of(table: bytes) -> str:
    """The ``time_hour``, the last column, that half of the rows are before."""
    hours = sorted(line.rsplit(b",", 1)[1].strip(b'\r"') for line in table.split(b"\n")[1:] if line)
    return hours[len(hours) // 2].decode()


def ingest(flights: DataFrame, path: str, middle: str, half: int) -> None:
    """Write one half of the flights (1 or 2), by scheduled departure; the half is the version of the transaction."""
    rows = flights.where(f"timestamp {'<' if half == 1 else '>='} timestamp'{middle}'")
    options: dict[str, str | int] = {**FLIGHTS, "txnAppId": APPLICATION, "txnVersion": half}
    to_log(rows, path, topic=TOPIC, partitions=PARTITIONS, order=["timestamp"], options=options)


def ingest_aircraft(flights: DataFrame, path: str) -> None:
    """Every flight of an aircraft that is known, under its tail number: of each only the last one is to stay."""
    rows = flights.where("key IS NOT NULL")
    to_log(rows, path, topic=AIRCRAFT, partitions=1, order=["timestamp", "value"], options=LATEST)
