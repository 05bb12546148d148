"""The flights as a table, and what three engines find in it: each counts the carriers' delays by itself."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb
import polars as pl

from demo.produce import TOPIC
from demo.questions import Delays
from seglog.table.building import TableUpdate, update_table
from seglog.table.iceberg.log_table import LogTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OPTIONS: Final = {"valueFormat": "json", "valueSchema": "carrier string, dep_delay int"}


def keep(log_dir: str, path: Path) -> TableUpdate:
    """Add the flights in a log directory, which a broker has open, to the table at ``path``."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="seglog: .* is in use: seglog reads up to the high watermarks")
        return update_table(log_dir, path, topic=TOPIC, options=_OPTIONS)


def count_by_spark(spark: SparkSession, path: Path) -> Mapping[str, Delays]:
    from pyspark.sql import functions as f

    from seglog.spark import table

    delay = f.col("value.dep_delay")
    counted = table(spark, path).groupBy("value.carrier").agg(f.count("*"), f.count(delay), f.sum(delay))
    return _delays(counted.collect())


def count_by_duckdb(_: SparkSession, path: Path) -> Mapping[str, Delays]:
    with LogTable.open(path) as opened, duckdb.connect() as connection:
        snapshot = opened.snapshot()
        files = connection.read_parquet(list(snapshot.files) if snapshot else [])
        counted = files.aggregate("value.carrier, count(*), count(value.dep_delay), sum(value.dep_delay)")
        return _delays(counted.fetchall())


def count_by_polars(_: SparkSession, path: Path) -> Mapping[str, Delays]:
    with LogTable.open(path) as opened:
        flight = pl.scan_iceberg(opened.iceberg.metadata_location).select(pl.col("value").struct.unnest())
        delay = pl.col("dep_delay")
        counted = flight.group_by("carrier").agg(pl.len(), delay.count(), delay.sum().alias("minutes"))
        with warnings.catch_warnings():  # pyiceberg plans the scan: enough for one file
            warnings.simplefilter("ignore", pl.exceptions.PerformanceWarning)
            return _delays(counted.collect().rows())


def _delays(rows: Iterable[Any]) -> dict[str, Delays]:
    return {carrier: Delays(flights, departed, int(minutes or 0)) for carrier, flights, departed, minutes in rows}


ENGINES: Final[Mapping[str, Callable[[SparkSession, Path], Mapping[str, Delays]]]] = {
    "Spark": count_by_spark,
    "DuckDB": count_by_duckdb,
    "Polars": count_by_polars,
}
