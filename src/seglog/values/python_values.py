"""The values of a column as Python has them, also where Python has none: dates and times end with the years 1 and 9999.

Arrow's dates and timestamps go on beyond them, and producers write such values when they take microseconds for
milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NoReturn

import pyarrow as pa

from seglog.core.errors import InvalidRecordError

_DAY_MICROS: Final = 86_400_000_000
_EPOCH_DAYS: Final = 719_468
"""From 0000-03-01, where the years of `_date` begin, to 1970."""
_ERA_DAYS: Final = 146_097
"""Days of 400 years."""


def python_values(column: pa.Array, far: Callable[[str], Any]) -> list[Any]:
    """As ``column.to_pylist()``, but a date or timestamp outside of the years 1 to 9999, at any depth, becomes ``far``
    of its text in ISO 8601.

    Raises `InvalidRecordError` with the row if ``far`` raises `ValueError`.
    """
    try:
        values: list[Any] = column.to_pylist()
        return values
    except (OverflowError, ValueError):
        pass
    values = []
    for row in range(len(column)):
        try:
            values.append(_value(column[row], far))
        except ValueError as error:
            raise InvalidRecordError(f"row {row}: {error}") from None
    return values


def refuse_far(text: str) -> NoReturn:
    """For `python_values`, of a format that ends with the year 9999."""
    raise ValueError(f"{text} is outside of the years 1 to 9999")


def _value(scalar: Any, far: Callable[[str], Any]) -> Any:
    if not scalar.is_valid:
        return None
    kind = scalar.type
    if isinstance(kind, pa.StructType):
        return {one.name: _value(scalar[at], far) for at, one in enumerate(kind)}
    if isinstance(kind, pa.MapType):
        return [(_value(entry[0], far), _value(entry[1], far)) for entry in scalar.values]
    if isinstance(kind, pa.ListType):
        return [_value(one, far) for one in scalar.values]
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        return far(_text(scalar))


def _text(scalar: Any) -> str:
    """A date or a timestamp in ISO 8601. Years of more than four digits have a sign, as in Java.

    >>> _text(pa.scalar(253_402_300_800_000_001, pa.timestamp("us", tz="UTC"))), _text(pa.scalar(-719_163, pa.date32()))
    ('+10000-01-01T00:00:00.000001Z', '0000-12-31')
    >>> _text(pa.scalar(-(2**63), pa.timestamp("us"))), _text(pa.scalar(2**31 - 1, pa.date32()))
    ('-290308-12-21T19:59:05.224192', '+5881580-07-11')
    """
    if pa.types.is_date32(scalar.type):
        return _date(scalar.value)
    days, micros = divmod(scalar.value, _DAY_MICROS)
    seconds, fraction = divmod(micros, 1_000_000)
    time = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    more = f".{fraction:06}" if fraction else ""
    return f"{_date(days)}T{time}{more}{'' if scalar.type.tz is None else 'Z'}"


def _date(days: int) -> str:
    """Howard Hinnant's ``civil_from_days``: years that begin in March have their leap day at the end."""
    era, day_of_era = divmod(days + _EPOCH_DAYS, _ERA_DAYS)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * day_of_year + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    year = year_of_era + era * 400 + (month <= 2)
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04}-{month:02}-{day_of_year - (153 * shifted + 2) // 5 + 1:02}"
