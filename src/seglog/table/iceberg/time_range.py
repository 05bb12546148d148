"""Which files of a table can have records of a time. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from pyiceberg.conversions import from_bytes
from pyiceberg.types import TimestamptzType
from pyiceberg.utils.datetime import datetime_to_micros

from seglog.core.errors import InvalidConfigError

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

_TYPE: Final = TimestamptzType()


class TimeRange(NamedTuple):
    """From ``since`` on, and before ``until``; None is no bound."""

    since: datetime | None = None
    until: datetime | None = None

    def check(self) -> None:
        """Raise `InvalidConfigError` for a time without a time zone."""
        for bound in self:
            if bound is not None and bound.tzinfo is None:
                raise InvalidConfigError(f"{bound!r} has no time zone: set one, for instance tzinfo=datetime.UTC")


ALL_TIME: Final = TimeRange()


def files_within(files: Sequence[DataFile], timestamp_id: int, times: TimeRange) -> list[DataFile]:
    """The files that have records of these times, by their statistics; ``timestamp_id`` is the column's field id."""
    if times == ALL_TIME:
        return list(files)
    return [one for one in files if _can_have(one, timestamp_id, times)]


def _can_have(file: DataFile, number: int, times: TimeRange) -> bool:
    lower, upper = (file.lower_bounds or {}).get(number), (file.upper_bounds or {}).get(number)
    if lower is None or upper is None:
        return (file.null_value_counts or {}).get(number) != file.record_count
    since, until = (None if one is None else datetime_to_micros(one) for one in times)
    return (since is None or int(from_bytes(_TYPE, upper)) >= since) and (
        until is None or int(from_bytes(_TYPE, lower)) < until
    )
