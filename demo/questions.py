"""Three questions about a year of flights, answered twice: by Spark SQL from the log, and from the source table.

The second way shares nothing with the first but the CSV: it counts its rows in plain Python. Answers must be equal, all
of them, not only those that are shown.
"""

from __future__ import annotations

import csv
import io
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from demo.flights import MISSING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VIEW: Final = """\
CREATE OR REPLACE TEMPORARY VIEW flights AS
SELECT partition, offset, timestamp, headers, flight.*
FROM (SELECT *, from_json(CAST(value AS STRING), 'year INT, month INT, day INT, dep_delay INT') AS flight FROM log)"""

CARRIERS: Final = """\
SELECT CAST(headers[0].value AS STRING) AS carrier, count(*) AS flights,
       count(dep_delay) AS departed, sum(dep_delay) AS minutes
FROM flights GROUP BY 1 ORDER BY minutes / departed DESC"""

HOURS: Final = """\
SELECT hour, from_utc_timestamp(hour, 'America/New_York') AS new_york, flights
FROM (SELECT date_trunc('HOUR', timestamp) AS hour, count(*) AS flights FROM flights GROUP BY 1)
ORDER BY flights DESC, hour"""

DAYS: Final = """\
SELECT make_date(year, month, day) AS day, count(*) AS flights,
       count(dep_delay) AS departed, sum(dep_delay) AS minutes
FROM flights GROUP BY 1 ORDER BY minutes / departed DESC, day"""


class Delays(NamedTuple):
    """Scheduled flights, departed flights, and the sum of their delays in minutes (negative if early)."""

    flights: int
    departed: int
    minutes: int

    @property
    def mean(self) -> float:
        """Minutes of delay for a flight that left."""
        return self.minutes / self.departed if self.departed else 0.0


class Hour(NamedTuple):
    """An hour in UTC and on New York's clocks, both ``YYYY-MM-DD HH``."""

    utc: str
    new_york: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """``carriers`` by two letters, ``hours`` the flights scheduled in each, ``days`` by ``YYYY-MM-DD`` in New York."""

    carriers: Mapping[str, Delays]
    hours: Mapping[Hour, int]
    days: Mapping[str, Delays]

    @property
    def busiest_hour(self) -> Hour:
        return min(self.hours, key=lambda hour: (-self.hours[hour], hour))

    @property
    def worst_day(self) -> str:
        return min(self.days, key=lambda day: (-self.days[day].mean, day))

    @property
    def flights(self) -> int:
        return sum(carrier.flights for carrier in self.carriers.values())


def read_log(spark: SparkSession, bootstrap: str) -> DataFrame:
    """The flights' records, from the live broker."""
    return (
        spark.read.format("seglog")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", "flights")
        .option("includeHeaders", "true")
        .load()
    )


def ask_spark(spark: SparkSession, bootstrap: str) -> Answers:
    """The answers by Spark SQL from the brokers at ``bootstrap``."""
    read_log(spark, bootstrap).createOrReplaceTempView("log")
    spark.sql(VIEW)
    spark.sql("CACHE TABLE flights")
    try:
        return Answers(
            carriers={row.carrier: _delays(row) for row in spark.sql(CARRIERS).collect()},
            hours={
                Hour(f"{row.hour:%F %H}", f"{row.new_york:%F %H}"): row.flights for row in spark.sql(HOURS).collect()
            },
            days={str(row.day): _delays(row) for row in spark.sql(DAYS).collect()},
        )
    finally:
        spark.sql("UNCACHE TABLE flights")


def _delays(row: object) -> Delays:
    flights, departed, minutes = (getattr(row, name) for name in Delays._fields)
    return Delays(flights, departed, minutes or 0)


def ask_source(table: bytes) -> Answers:
    """The answers from the CSV."""
    rows = csv.reader(io.StringIO(table.decode("utf-8")))
    columns = next(rows)
    names = ("carrier", "dep_delay", "time_hour", "year", "month", "day", "hour")
    pick = itemgetter(*(columns.index(name) for name in names))
    carriers: dict[str, _Tally] = defaultdict(_Tally)
    days: dict[tuple[str, str, str], _Tally] = defaultdict(_Tally)
    hours: Counter[tuple[str, ...]] = Counter()
    for row in rows:
        carrier, delay, utc, year, month, day, hour = pick(row)
        carriers[carrier].add(delay)
        days[year, month, day].add(delay)
        hours[utc, year, month, day, hour] += 1
    return Answers(
        carriers={carrier: tally.delays() for carrier, tally in carriers.items()},
        hours={
            Hour(utc[:13].replace("T", " "), f"{_day(year, month, day)} {int(hour):02}"): count
            for (utc, year, month, day, hour), count in hours.items()
        },
        days={_day(*day): tally.delays() for day, tally in days.items()},
    )


def count(answers: Answers) -> int:
    """The number of values in the answers."""
    return len(answers.carriers) + len(answers.hours) + len(answers.days)


class _Tally:
    """Adds up `Delays`, cell by cell."""

    def __init__(self) -> None:
        self._flights = self._departed = self._minutes = 0

    def add(self, delay: str) -> None:
        self._flights += 1
        if delay != MISSING:
            self._departed += 1
            self._minutes += int(delay)

    def delays(self) -> Delays:
        return Delays(self._flights, self._departed, self._minutes)


def _day(year: str, month: str, day: str) -> str:
    return f"{int(year):04}-{int(month):02}-{int(day):02}"


def differences(got: Answers, expected: Answers) -> list[str]:
    """The answers that differ from the expected ones, as text."""
    found: list[str] = []
    for name in ("carriers", "hours", "days"):
        ours, theirs = getattr(got, name), getattr(expected, name)
        found.extend(
            f"{name}: {key}: the log says {ours.get(key)}, the source table {theirs.get(key)}"
            for key in sorted(ours.keys() | theirs.keys(), key=str)
            if ours.get(key) != theirs.get(key)
        )
    return found
