"""Random Avro schemas with values, as fastavro takes them and as they are in Arrow."""

from __future__ import annotations

import itertools
import math
import struct
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from hypothesis import strategies as st

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAIVE = datetime(1970, 1, 1)  # noqa: DTZ001
_INTS = st.integers(-(2**31), 2**31 - 1)
_LONGS = st.integers(-(2**63), 2**63 - 1)
_MILLIS = st.integers(-62_000_000_000_000, 250_000_000_000_000)


class Typed(NamedTuple):
    """``schema`` is the one to read with. ``wrapped`` has the same bytes and names each branch of a union: fastavro
    cannot tell branches apart by their values. ``values`` gives pairs: for fastavro, and as Arrow has it."""

    schema: Any
    wrapped: Any
    values: st.SearchStrategy[tuple[Any, Any]]


def float32(number: float) -> float:
    """The nearest number of 32 bits."""
    return float(struct.unpack("<f", struct.pack("<f", number))[0])


def _same(schema: Any, values: st.SearchStrategy[Any]) -> Typed:
    return Typed(schema, schema, values.map(lambda value: (value, value)))


def _logical(kind: str, logical: str, values: st.SearchStrategy[tuple[Any, Any]], **more: Any) -> Typed:
    schema = {"type": kind, "logicalType": logical, **more}
    return Typed(schema, schema, values)


def _moments(logical: str, unit: timedelta, epoch: datetime) -> Typed:
    moments = _MILLIS.map(lambda number: epoch + number * unit)
    return _logical("long", logical, moments.map(lambda moment: (moment, moment)))


def leaves() -> list[Typed]:
    floats = st.floats(width=32, allow_nan=False)
    decimals = st.integers(-(10**20) + 1, 10**20 - 1).map(lambda number: Decimal(number).scaleb(-3))
    return [
        _same("boolean", st.booleans()),
        _same("int", _INTS),
        _same("long", _LONGS),
        _same("float", floats),
        _same("double", st.floats(allow_nan=False)),
        _same("bytes", st.binary(max_size=20)),
        _same("string", st.text(max_size=20)),
        _logical("int", "date", st.dates(date(1, 1, 1)).map(lambda day: (day, day))),
        _logical("bytes", "decimal", decimals.map(lambda one: (one, one)), precision=20, scale=3),
        _logical("string", "uuid", st.uuids().map(lambda one: (one, str(one)))),
        _moments("timestamp-millis", timedelta(milliseconds=1), _EPOCH),
        _moments("timestamp-micros", timedelta(microseconds=1), _EPOCH),
        _moments("local-timestamp-millis", timedelta(milliseconds=1), _NAIVE),
        _moments("local-timestamp-micros", timedelta(microseconds=1), _NAIVE),
        _logical("int", "time-millis", st.integers(0, 86_399_999).map(lambda n: (_time(n * 1000), _time(n * 1000)))),
        _logical("long", "time-micros", st.integers(0, 86_399_999_999).map(lambda n: (_time(n), _time(n)))),
    ]


def _time(micros: int) -> Any:
    return (_NAIVE + timedelta(microseconds=micros)).time()


_names = itertools.count()


@st.composite
def typed(draw: st.DrawFn, depth: int = 3) -> Typed:
    """Any schema that is supported, with at most ``depth`` floors."""
    leaf: Typed = draw(st.sampled_from(leaves()))
    if depth == 0:
        return leaf
    kind = draw(st.sampled_from(["leaf", "leaf", "enum", "fixed", "array", "map", "nullable", "union", "record"]))
    name = f"N{next(_names)}"
    if kind == "leaf":
        return leaf
    if kind == "enum":
        symbols = draw(st.lists(st.sampled_from("ABCDEFG"), min_size=1, unique=True))
        return _same({"type": "enum", "name": name, "symbols": symbols}, st.sampled_from(symbols))
    if kind == "fixed":
        return _fixed(draw(st.integers(0, 3)), name)
    if kind == "record":
        return draw(records(depth=depth - 1))
    if kind == "union":
        return draw(_union(depth - 1))
    inner = draw(typed(depth=depth - 1))
    if kind == "nullable":
        if isinstance(inner.schema, list):
            return inner
        return _nullable(inner)
    if kind == "array":
        if _is_empty(inner.schema):
            return inner
        lists = st.lists(inner.values, max_size=4).map(
            lambda pairs: ([one for one, _ in pairs], [one for _, one in pairs])
        )
        return Typed({"type": "array", "items": inner.schema}, {"type": "array", "items": inner.wrapped}, lists)
    maps = st.dictionaries(st.text(max_size=5), inner.values, max_size=4).map(
        lambda pairs: ({key: one for key, (one, _) in pairs.items()}, [(key, one) for key, (_, one) in pairs.items()])
    )
    return Typed({"type": "map", "values": inner.schema}, {"type": "map", "values": inner.wrapped}, maps)


def _fixed(kind: int, name: str) -> Typed:
    schema: dict[str, Any] = {"type": "fixed", "name": name, "size": 5}
    if kind == 0:
        return _same(schema, st.binary(min_size=5, max_size=5))
    if kind == 1:
        schema |= {"size": 9, "logicalType": "decimal", "precision": 20, "scale": 0}
        return _same(schema, st.integers(-(10**20) + 1, 10**20 - 1).map(Decimal))
    if kind == 2:
        schema |= {"size": 16, "logicalType": "uuid"}
        return Typed(schema, {**schema, "logicalType": "none"}, st.uuids().map(lambda one: (one.bytes, str(one))))
    schema |= {"size": 12, "logicalType": "duration"}
    parts = st.tuples(*[st.integers(0, 2**32 - 1)] * 3)
    return Typed(
        schema,
        {**schema, "logicalType": "none"},
        parts.map(
            lambda three: (
                struct.pack("<III", *three),
                dict(zip(("months", "days", "milliseconds"), three, strict=True)),
            )
        ),
    )


def _is_empty(schema: Any) -> bool:
    return isinstance(schema, dict) and schema["type"] == "fixed" and schema["size"] == 0


def _nullable(inner: Typed) -> Typed:
    return Typed(["null", inner.schema], ["null", inner.wrapped], st.one_of(st.just((None, None)), inner.values))


def _kind(schema: Any) -> str:
    return str(schema.get("name") or schema["type"] if isinstance(schema, dict) else schema)


@st.composite
def _union(draw: st.DrawFn, depth: int) -> Typed:
    """Of several types, perhaps with null; as a struct of members."""
    drawn = draw(
        st.lists(typed(depth=depth).filter(lambda one: not isinstance(one.schema, list)), min_size=2, max_size=4)
    )
    members = list({_kind(one.schema): one for one in drawn}.values())
    kinds = {_kind(one.schema) for one in members}
    if len(members) < 2 or kinds in ({"int", "long"}, {"float", "double"}):
        return members[0]
    names = [f"W{next(_names)}" for _ in members]
    null_at = draw(st.integers(-1, len(members)))
    schema: list[Any] = [one.schema for one in members]
    wrapped: list[Any] = [
        {"type": "record", "name": name, "fields": [{"name": "v", "type": one.wrapped}]}
        for name, one in zip(names, members, strict=True)
    ]
    values: list[st.SearchStrategy[tuple[Any, Any]]] = [
        one.values.map(partial(_as_member, names, number)) for number, one in enumerate(members)
    ]
    if null_at >= 0:
        schema.insert(null_at, "null")
        wrapped.insert(null_at, "null")
        values.append(st.just((None, None)))
    return Typed(schema, wrapped, st.one_of(*values))


def _as_member(names: list[str], number: int, pair: tuple[Any, Any]) -> tuple[Any, Any]:
    members = {f"member{other}": pair[1] if other == number else None for other in range(len(names))}
    return (names[number], {"v": pair[0]}), members


@st.composite
def records(draw: st.DrawFn, depth: int = 2) -> Typed:
    fields = draw(st.lists(typed(depth=depth), min_size=1, max_size=5))
    name = f"R{next(_names)}"

    def schema(of: int) -> Any:
        return {
            "type": "record",
            "name": name,
            "fields": [{"name": f"f{number}", "type": one[of]} for number, one in enumerate(fields)],
        }

    def side(pairs: tuple[tuple[Any, Any], ...], which: int) -> Any:
        return {f"f{number}": pair[which] for number, pair in enumerate(pairs)}

    values = st.tuples(*[one.values for one in fields]).map(lambda pairs: (side(pairs, 0), side(pairs, 1)))
    return Typed(schema(0), schema(1), values)


def plain(value: Any) -> Any:
    """A value that compares: moments without the name of their zone, numbers that are not a number as text."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    return str(value) if isinstance(value, UUID) else value
