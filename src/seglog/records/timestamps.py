"""Which of Kafka's milliseconds are timestamps, and the error for the others. Pure.

A record's timestamp is any 64-bit number, and producers write microseconds or nanoseconds there. Arrow, Spark and
Iceberg hold microseconds in 64 bits, which end in the year 294,247; Spark's connector fails beyond that. Python, Delta
and the SQL standard end with the year 9999, so tables and views do, too. -1, Kafka's "none", is the millisecond before
1970, as in the connector.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from seglog.core.errors import TimestampRangeError
from seglog.core.types import MAX_INT64

OUT_OF_RANGE: Final = "is out of range: not milliseconds? mode=permissive makes it null"


class TimestampRange(NamedTuple):
    """Milliseconds since 1970, from ``first`` to ``last``."""

    first: int
    last: int

    def __contains__(self, milliseconds: object) -> bool:
        return isinstance(milliseconds, int) and self.first <= milliseconds <= self.last


STORABLE: Final = TimestampRange(-(MAX_INT64 // 1000), MAX_INT64 // 1000)
"""What 64 bits of microseconds hold."""
CALENDAR: Final = TimestampRange(-62_135_596_800_000, 253_402_300_799_999)
"""The years 1 to 9999."""


def timestamp_error(topic: str | None, partition: int | None, offset: int, milliseconds: int) -> TimestampRangeError:
    """The error for a record whose timestamp is out of range.

    >>> print(timestamp_error("flights", 0, 7, 1_700_000_000_000_000_000))
    topic flights, partition 0, offset 7: the timestamp 1700000000000000000 is out of range: not milliseconds? \
mode=permissive makes it null
    """
    place = [] if topic is None else [f"topic {topic}", f"partition {partition}"]
    return range_error(", ".join([*place, f"offset {offset}"]), milliseconds)


def range_error(place: str, milliseconds: int) -> TimestampRangeError:
    """The error for a timestamp that is anywhere, which ``place`` names."""
    return TimestampRangeError(f"{place}: the timestamp {milliseconds} {OUT_OF_RANGE}")
