"""What a query engine needs of a scan: bounds that follow from its filter. Pure.

An engine hands a scan a filter, which the scan applies to each record. Beforehand, the parts of the filter that are
understood here narrow the scan: fewer partitions, fewer offsets, and records that are dropped before their keys and
values are copied. Anything else leaves the bounds wide. A record outside of the bounds never passes the filter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyarrow import ipc

from seglog.core.types import MAX_INT64
from seglog.records.timestamps import TimestampRange

_EARLIEST: Final = -MAX_INT64 - 1
_ANY_TIME: Final = TimestampRange(_EARLIEST, MAX_INT64)
_MICROS: Final = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 0}


class Narrowing(NamedTuple):
    """Bounds of a scan: offsets from ``low`` to before ``high``, and ``times`` in ms; None: any."""

    low: int = 0
    high: int = MAX_INT64
    times: TimestampRange = _ANY_TIME
    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    keys: frozenset[bytes] | None = None

    def has(self, topic: str | None, partition: int | None) -> bool:
        """Whether a partition may have wanted records."""
        return (self.topics is None or topic in self.topics) and (
            self.partitions is None or partition in self.partitions
        )


EVERYTHING: Final = Narrowing()


def both(one: Narrowing, other: Narrowing) -> Narrowing:
    """The bounds of records that are within both."""
    return Narrowing(
        max(one.low, other.low),
        min(one.high, other.high),
        TimestampRange(max(one.times.first, other.times.first), min(one.times.last, other.times.last)),
        _meet(one.topics, other.topics),
        _meet(one.partitions, other.partitions),
        _meet(one.keys, other.keys),
    )


def either(one: Narrowing, other: Narrowing) -> Narrowing:
    """The bounds of records that are within one or the other."""
    return Narrowing(
        min(one.low, other.low),
        max(one.high, other.high),
        TimestampRange(min(one.times.first, other.times.first), max(one.times.last, other.times.last)),
        _join(one.topics, other.topics),
        _join(one.partitions, other.partitions),
        _join(one.keys, other.keys),
    )


def _meet(one: frozenset[Any] | None, other: frozenset[Any] | None) -> frozenset[Any] | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _join(one: frozenset[Any] | None, other: frozenset[Any] | None) -> frozenset[Any] | None:
    return None if one is None or other is None else one | other


# Comparisons

_MIRRORED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "="}


class _Column(NamedTuple):
    name: str


class _Value(NamedTuple):
    """A literal: an integer, text, bytes, or a datetime's microseconds since 1970 as `_Micros`."""

    value: Any


class _Micros(NamedTuple):
    micros: int


def _compare(left: object, operator: str, right: object) -> Narrowing:
    """The bounds of ``left operator right``, where one side is a column and the other a literal."""
    if isinstance(left, _Value) and isinstance(right, _Column):
        left, operator, right = right, _MIRRORED[operator], left
    if not isinstance(left, _Column) or not isinstance(right, _Value):
        return EVERYTHING
    value = right.value
    if left.name == "timestamp" and isinstance(value, _Micros):
        return _by_time(operator, value.micros)
    if left.name == "offset" and _is_int(value):
        return _by_offset(operator, value)
    return _one_of(left.name, [value]) if operator == "=" else EVERYTHING


def _by_offset(operator: str, value: int) -> Narrowing:
    low = {">": value + 1, ">=": value, "=": value}.get(operator, 0)
    high = {"<": value, "<=": value + 1, "=": value + 1}.get(operator, MAX_INT64)
    return Narrowing(low=max(low, 0), high=min(max(high, 0), MAX_INT64))


def _by_time(operator: str, micros: int) -> Narrowing:
    """Timestamps are whole milliseconds: those after a microsecond begin with the next one."""
    first = {">": micros // 1000 + 1, ">=": -(-micros // 1000), "=": -(-micros // 1000)}.get(operator, _EARLIEST)
    last = {"<": -(-micros // 1000) - 1, "<=": micros // 1000, "=": micros // 1000}.get(operator, MAX_INT64)
    return Narrowing(times=TimestampRange(first, last))


def _one_of(column: str, values: Sequence[object]) -> Narrowing:
    """The bounds of ``column IN values``."""
    if not values:
        return EVERYTHING
    if column == "offset" and all(map(_is_int, values)):
        whole = [value for value in values if isinstance(value, int)]
        return Narrowing(low=max(min(whole), 0), high=min(max(max(whole) + 1, 0), MAX_INT64))
    if column == "partition" and all(map(_is_int, values)):
        return Narrowing(partitions=frozenset(value for value in values if isinstance(value, int)))
    if column == "topic" and all(isinstance(value, str) for value in values):
        return Narrowing(topics=frozenset(value for value in values if isinstance(value, str)))
    if column == "key" and all(isinstance(value, bytes) for value in values):
        return Narrowing(keys=frozenset(value for value in values if isinstance(value, bytes)))
    return EVERYTHING


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _narrowing(node: object) -> Narrowing:
    return node if isinstance(node, Narrowing) else EVERYTHING


# Filters of pyarrow, and so of DuckDB


class ArrowFilter(NamedTuple):
    """The ``bounds`` of an expression and the ``columns`` that it needs; None: they are not known."""

    bounds: Narrowing
    columns: frozenset[str] | None


_METADATA: Final = re.compile(r"(call|field_ref|nested_field_ref|literal|options|end): '(.*)'")
_ARROW_COMPARISONS: Final = {
    "equal": "=", "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">=",
}  # fmt: skip


def arrow_filter(expression: Any) -> ArrowFilter:
    """What is known of a filter.

    Arrow shows the parts of an expression only in its serialized form (``Serialize`` in ``compute/expression.cc``): a
    file of one record batch, whose metadata names functions, fields and the columns that hold literals and options.

    >>> import pyarrow.compute as pc
    >>> arrow_filter((pc.field("offset") >= 5) & (pc.field("partition") == 2)).bounds[:2]
    (5, 9223372036854775807)
    """
    try:
        (serialized,) = expression.__reduce__()[1]
        with ipc.open_file(serialized) as file:
            batch = file.get_batch(0)
        text = batch.schema.to_string(truncate_metadata=False)
        found = [_METADATA.fullmatch(line) for line in text.partition("-- schema metadata --\n")[2].splitlines()]
        steps = [(match[1], match[2]) for match in found if match is not None]
        if not steps or len(steps) != len(found):
            return ArrowFilter(EVERYTHING, None)
        columns = frozenset(value for kind, value in steps if kind == "field_ref")
        is_nested = any(kind == "nested_field_ref" for kind, _ in steps)
        return ArrowFilter(_narrowing(_evaluate(steps, batch)), None if is_nested else columns)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, pa.ArrowInvalid):
        return ArrowFilter(EVERYTHING, None)


def _evaluate(steps: Sequence[tuple[str, str]], batch: pa.RecordBatch) -> object:
    """The bounds, column or literal of a serialized expression."""
    stack: list[list[object]] = [[]]
    options: list[object] = [None]
    for kind, text in steps:
        match kind:
            case "call":
                stack.append([])
                options.append(None)
            case "field_ref":
                stack[-1].append(_Column(text))
            case "literal":
                stack[-1].append(_arrow_value(batch.column(int(text))[0]))
            case "options":
                options[-1] = batch.column(int(text))[0]
            case "end":
                arguments, given = stack.pop(), options.pop()
                stack[-1].append(_call(text, arguments, given))
            case _:
                stack[-1].append(None)
    (whole,) = stack[0]
    return whole


def _arrow_value(scalar: Any) -> object:
    if pa.types.is_timestamp(scalar.type) and scalar.is_valid:
        unit = _MICROS[scalar.type.unit]
        return _Value(_Micros(scalar.value * unit)) if unit and scalar.type.tz is not None else None
    value = scalar.as_py()
    return _Value(value) if value is None or isinstance(value, int | str | bytes) else None


def _call(name: str, arguments: Sequence[object], options: Any) -> object:
    if name in _ARROW_COMPARISONS:
        return _compare(arguments[0], _ARROW_COMPARISONS[name], arguments[1])
    if name in ("and", "and_kleene"):
        return both(_narrowing(arguments[0]), _narrowing(arguments[1]))
    if name in ("or", "or_kleene"):
        return either(_narrowing(arguments[0]), _narrowing(arguments[1]))
    if name == "if_else" and arguments[2] == _Value(None):
        return _narrowing(arguments[1])  # otherwise the filter is null, and the record does not pass
    if name == "is_in" and isinstance(arguments[0], _Column):
        values = options["value_set"].values.to_pylist()
        return EVERYTHING if None in values else _one_of(arguments[0].name, values)
    return None


# Filters of Polars


def polars_bounds(expression: Mapping[str, Any]) -> Narrowing:
    """The bounds of a Polars expression, which ``meta.serialize(format="json")`` has made."""
    try:
        return _narrowing(_polars_node(expression))
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        return EVERYTHING


_POLARS_COMPARISONS: Final = {"Eq": "=", "Lt": "<", "LtEq": "<=", "Gt": ">", "GtEq": ">="}
_POLARS_UNITS: Final = {"Milliseconds": 1_000, "Microseconds": 1}
_CLOSED: Final[Mapping[str, tuple[str, str]]] = {
    "Both": (">=", "<="), "Left": (">=", "<"), "Right": (">", "<="), "None": (">", "<"),
}  # fmt: skip


def _polars_node(node: Mapping[str, Any]) -> object:
    ((kind, parts),) = node.items()
    match kind:
        case "Column":
            return _Column(parts)
        case "Literal":
            return _polars_literal(parts)
        case "BinaryExpr":
            return _polars_binary(parts["op"], _polars_node(parts["left"]), _polars_node(parts["right"]))
        case "Function":
            return _polars_function(parts)
    return None


def _polars_binary(operator: str, left: object, right: object) -> object:
    if operator in ("And", "LogicalAnd"):
        return both(_narrowing(left), _narrowing(right))
    if operator in ("Or", "LogicalOr"):
        return either(_narrowing(left), _narrowing(right))
    return _compare(left, _POLARS_COMPARISONS[operator], right) if operator in _POLARS_COMPARISONS else None


def _polars_literal(parts: Mapping[str, Any]) -> object:
    ((_, inner),) = parts.items()
    ((kind, value),) = inner.items()
    if kind == "Datetime":
        count, unit, zone = value
        scale = _POLARS_UNITS.get(unit)
        return None if scale is None or zone is None else _Value(_Micros(count * scale))
    if kind == "Binary":
        return _Value(bytes(value))
    if kind == "List":  # an IPC stream of the values
        with ipc.open_stream(bytes(value)) as stream:
            return _Value([one for column in stream.read_next_batch().columns for one in column.to_pylist()])
    return _Value(value) if isinstance(value, int | str) else None


def _polars_function(parts: Mapping[str, Any]) -> object:
    inner = parts["function"]
    function = inner.get("Boolean") if isinstance(inner, dict) else None
    if not isinstance(function, dict):
        return None
    if "IsBetween" in function:
        column, low, high = map(_polars_node, parts["input"])
        first, last = _CLOSED[function["IsBetween"]["closed"]]
        return both(_compare(column, first, low), _compare(column, last, high))
    if "IsIn" in function:
        column, values = map(_polars_node, parts["input"])
        if isinstance(column, _Column) and isinstance(values, _Value) and isinstance(values.value, list):
            return EVERYTHING if None in values.value else _one_of(column.name, values.value)
    return None
