"""Bounds from filters: nothing that passes a filter is outside of them, whatever the filter is."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.records.timestamps import TimestampRange
from seglog.sources.narrowing import EVERYTHING, Narrowing, arrow_filter, polars_bounds
from tests.cases import case

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ROWS = pa.table(
    {
        "offset": pa.array([number % 7 for number in range(84)], pa.int64()),
        "partition": pa.array([number % 3 for number in range(84)], pa.int32()),
        "topic": pa.array(["ab"[number % 2] for number in range(84)], pa.string()),
        "key": pa.array([(b"x", b"y", None, b"")[number % 4] for number in range(84)], pa.binary()),
        "timestamp": pa.array(
            [EPOCH + timedelta(milliseconds=number % 5) for number in range(84)], pa.timestamp("us", "UTC")
        ),
    }
)
_frame = pl.from_arrow(ROWS)
assert isinstance(_frame, pl.DataFrame)
FRAME = _frame
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "offset": st.integers(-2, 8),
    "partition": st.integers(-1, 3),
    "topic": st.sampled_from(["a", "b", "c"]),
    "key": st.sampled_from([b"x", b"y", b"", b"z"]),
    "timestamp": st.integers(-1500, 6500).map(lambda micros: EPOCH + timedelta(microseconds=micros)),
}
COMPARISONS = ("<", "<=", "=", ">", ">=", "in", "null", "not")


class Term:
    """A filter as both libraries write it."""

    def __init__(self, arrow: Any, polars: pl.Expr) -> None:
        self.arrow = arrow
        self.polars = polars


def _literal(column: str, value: Any) -> Any:
    return pa.scalar(value, ROWS.schema.field(column).type)


@st.composite
def comparisons(draw: st.DrawFn) -> Term:
    column = draw(st.sampled_from(sorted(VALUES)))
    kind = draw(st.sampled_from(COMPARISONS))
    arrow, polars = pc.field(column), pl.col(column)
    if kind == "null":
        return Term(arrow.is_null(), polars.is_null())
    if kind == "in":
        values = draw(st.lists(VALUES[column], min_size=1, max_size=3))
        found = pa.array(values, ROWS.schema.field(column).type)
        return Term(arrow.isin(found), polars.is_in(values))
    value = draw(VALUES[column])
    one, other = _literal(column, value), pl.lit(value, dtype=FRAME.schema[column])
    if draw(st.booleans()):  # the literal first
        arrow, one, polars, other = pc.scalar(one), arrow, other, polars
    match kind:
        case "<":
            return Term(arrow < one, polars < other)
        case "<=":
            return Term(arrow <= one, polars <= other)
        case ">":
            return Term(arrow > one, polars > other)
        case ">=":
            return Term(arrow >= one, polars >= other)
        case "not":
            return Term(~(arrow == one), ~(polars == other))
        case _:
            return Term(arrow == one, polars == other)


terms = st.recursive(
    comparisons(),
    lambda inner: st.tuples(inner, inner, st.booleans()).map(
        lambda two: (
            Term(two[0].arrow & two[1].arrow, two[0].polars & two[1].polars)
            if two[2]
            else Term(two[0].arrow | two[1].arrow, two[0].polars | two[1].polars)
        )
    ),
    max_leaves=5,
)


def within(row: dict[str, Any], bounds: Narrowing) -> bool:
    milliseconds = (row["timestamp"] - EPOCH) // timedelta(milliseconds=1)
    return (
        bounds.low <= row["offset"] < bounds.high
        and milliseconds in bounds.times
        and bounds.has(row["topic"], row["partition"])
        and (bounds.keys is None or row["key"] in bounds.keys)
    )


@given(terms)
def test_no_row_that_passes_is_outside_of_the_bounds(term: Term) -> None:
    case()
    bounds = arrow_filter(term.arrow).bounds
    assert all(within(row, bounds) for row in ROWS.filter(term.arrow).to_pylist())
    bounds = polars_bounds(json.loads(term.polars.meta.serialize(format="json")))
    assert all(within(row, bounds) for row in FRAME.filter(term.polars).to_dicts())


def test_what_is_understood() -> None:
    """The bounds that make a query read less; a library that writes its filters in another way fails here."""
    day = datetime(2013, 7, 4, tzinfo=UTC)
    first = 1372896000000
    arrow = (
        (pc.field("offset") >= 5)
        & (pc.field("offset") < 9)
        & (pc.field("timestamp") >= pa.scalar(day))
        & (pc.field("timestamp") < pa.scalar(day + timedelta(days=1)))
        & (pc.field("partition") == 2)
        & pc.field("topic").isin(["a", "b"])
        & (pc.field("key") == b"k")
    )
    wanted = Narrowing(
        5,
        9,
        TimestampRange(first, first + 86_399_999),
        frozenset({"a", "b"}),
        frozenset({2}),
        frozenset({b"k"}),
    )
    assert arrow_filter(arrow).bounds == wanted
    assert arrow_filter(arrow).columns == frozenset({"offset", "timestamp", "partition", "topic", "key"})
    polars = (
        pl.col("offset").is_between(5, 8)
        & (pl.col("timestamp") >= day)
        & (pl.col("timestamp") < day + timedelta(days=1))
        & (pl.col("partition") == 2)
        & pl.col("topic").is_in(["a", "b"])
        & (pl.col("key") == b"k")
    )
    assert polars_bounds(json.loads(polars.meta.serialize(format="json"))) == wanted


@pytest.mark.parametrize(
    "expression",
    [
        ~(pc.field("offset") > 5),
        pc.field("offset") + 1 > 5,
        pc.field("offset").cast(pa.float64()) > 5,
        pc.field("value", "offset") > 5,
        pc.field("offset") > pc.field("partition"),
        pc.field("timestamp") > pa.scalar(5, pa.timestamp("us")),
        (pc.field("offset") > 5) | pc.field("key").is_null(),
    ],
)
def test_anything_else_narrows_nothing(expression: Any) -> None:
    assert arrow_filter(expression).bounds == EVERYTHING


@pytest.mark.parametrize(
    "unknown", [{}, {"Column": 1}, {"BinaryExpr": {}}, {"a": 1, "b": 2}, {"Function": {"input": []}}]
)
def test_a_form_that_is_not_known_narrows_nothing(unknown: dict[str, Any]) -> None:
    assert polars_bounds(unknown) == EVERYTHING
