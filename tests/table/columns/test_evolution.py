"""Columns change only as Spark, by names, and Iceberg, by ids, both understand; anything else is refused by name."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seglog.core.errors import InvalidConfigError
from seglog.core.fs import OsFs
from seglog.records.columns import SCHEMA
from seglog.table.columns.column_types import arrow_schema, conform, iceberg_schema
from seglog.table.columns.evolution import changes
from seglog.table.columns.pinned_formats import PinnedFormats, decode_formats, encode_formats
from seglog.table.files.record_files import write_records
from seglog.table.iceberg.log_table import LogTable
from seglog.table.iceberg.positions import Position, Positions
from seglog.values.schemas import SchemaText

FORMATS = PinnedFormats(options={"valueFormat": "json"}, schemas={"value": SchemaText("JSON", "a int")})


def _columns(value: pa.DataType) -> pa.Schema:
    return SCHEMA.set(1, pa.field("value", value))


_PRIMITIVES = st.sampled_from(
    (
        *(pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.bool_()),
        *(pa.decimal128(8, 2), pa.decimal128(12, 2), pa.decimal128(12, 3), pa.timestamp("us"), pa.date32()),
    )
)


def _structs(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    return st.dictionaries(st.sampled_from("abc"), inner, min_size=1).map(
        lambda fields: pa.struct(list(fields.items()))
    )


_TYPES = st.recursive(
    _PRIMITIVES,
    lambda inner: st.one_of(
        _structs(inner),
        inner.map(lambda one: pa.list_(pa.field("element", one))),
        inner.map(lambda one: pa.map_(pa.string(), one)),
    ),
    max_leaves=5,
)


def _value(kind: Any, draw: st.DrawFn) -> Any:
    if draw(st.integers(0, 4)) == 0:
        return None
    if isinstance(kind, pa.StructType):
        return {one.name: _value(one.type, draw) for one in kind}
    if isinstance(kind, pa.ListType):
        return [_value(kind.value_type, draw) for _ in range(draw(st.integers(0, 2)))]
    if isinstance(kind, pa.MapType):
        return [("k", _value(kind.item_field.type, draw))] if draw(st.booleans()) else []
    return _SAMPLES[str(kind).split("[")[0].split("(")[0]]


_SAMPLES = {
    **dict.fromkeys(("int16", "int32", "int64", "date32", "timestamp", "decimal128"), 7),
    **dict.fromkeys(("float", "double"), 0.5),
    "string": "s",
    "binary": b"b",
    "bool": True,
}


@st.composite
def _two_versions(draw: st.DrawFn) -> tuple[Any, list[Any], Any, list[Any]]:
    old, new = draw(_structs(_TYPES)), draw(_structs(_TYPES))
    return old, [_value(old, draw) for _ in range(2)], new, [_value(new, draw) for _ in range(2)]


def _batch(columns: pa.Schema, values: list[Any], first: int) -> pa.RecordBatch:
    value = columns.field("value")
    rows = pa.Table.from_arrays([pa.array(values, value.type)], schema=pa.schema([value]))
    rows = conform(rows, columns)
    offsets = pa.array(range(first, first + len(values)), pa.int64())
    arrays = [offsets if one.name == "offset" else rows.column(one.name).combine_chunks() for one in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def _within(kind: Any, value: Any) -> Any:
    """A value of an older type as one of a newer type: with nulls for fields that it does not have."""
    if value is None:
        return None
    if isinstance(kind, pa.StructType):
        return {one.name: _within(one.type, value.get(one.name)) for one in kind}
    if isinstance(kind, pa.ListType):
        return [_within(kind.value_type, one) for one in value]
    if isinstance(kind, pa.MapType):
        return [(name, _within(kind.item_field.type, one)) for name, one in value]
    return value


@given(_two_versions())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=8)
def test_a_change_that_is_accepted_reads_the_same_by_names_and_by_ids(
    tmp_path_factory: pytest.TempPathFactory, versions: tuple[Any, list[Any], Any, list[Any]]
) -> None:
    old, old_values, new, new_values = versions
    path = tmp_path_factory.mktemp("evolved") / "warehouse" / "t"
    with LogTable.open_or_create(path, columns=_columns(old), formats=FORMATS) as table:
        ids = table.form.ids
        _add(table, _batch(_columns(old), old_values, 0), 2)
        try:
            table.evolve(_columns(new), FORMATS)
        except InvalidConfigError:
            assert table.form.schema.equals(arrow_schema(iceberg_schema(_columns(old))))
            return
        assert {name: table.form.ids[name] for name in ids} == ids
        assert not changes(table.iceberg.schema(), _columns(new))
        _add(table, _batch(_columns(new), new_values, 2), 4)
        kind = table.form.schema.field("value").type
        by_id = sorted(table.iceberg.scan().to_arrow().to_pylist(), key=lambda row: row["offset"])
        snapshot = table.snapshot()
        assert snapshot is not None
    expected = pa.array([_within(kind, value) for value in old_values + new_values], kind).to_pylist()
    assert [_without_empty(row["value"]) for row in by_id] == [_without_empty(value) for value in expected]


def _without_empty(value: Any) -> Any:
    """pyiceberg 0.12 returns empty lists and maps for some that are null."""
    if isinstance(value, dict):
        return {name: _without_empty(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_empty(one) for one in value] or None
    return value


def _add(table: LogTable, batch: pa.RecordBatch, end: int) -> None:
    written = write_records(OsFs(), table.path.data, [batch], table.form)
    assert written is not None
    positions = Positions(topic="t", partitions={0: Position(end)})
    table.append([written.path], positions, {0: end - 2})


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ([("n", pa.int64())], [("n", pa.int32())], "field value.n is long in the table and int in the schema"),
        ([("n", pa.string())], [("n", pa.struct([("a", pa.int32())]))], "value.n is string in the table and struct"),
        ([("n", pa.float64())], [("n", pa.float32())], "value.n is double in the table and float"),
        ([("n", pa.list_(pa.string()))], [("n", pa.list_(pa.int32()))], "value.n.element is string in the table"),
        (
            [("n", pa.map_(pa.string(), pa.int32()))],
            [("n", pa.map_(pa.int32(), pa.int32()))],
            "value.n is map in the table and map",
        ),
        ([("n", pa.decimal128(8, 2))], [("n", pa.decimal128(9, 3))], r"value.n is decimal\(8, 2\) in the table"),
        ([("n", pa.int32())], [("N", pa.int32())], "field value.N, and the table has 'n' there: Spark does not tell"),
        ([("n", pa.int32())], [("a", pa.int32()), ("A", pa.int32())], "field value.A, and the table has 'a' there"),
        ([("n", pa.int32())], [("a", pa.struct([("d", pa.duration("us"))]))], r"value.a.d is of type duration\[us\]"),
    ],
)
def test_what_iceberg_cannot_change_is_refused_by_name(old: Any, new: Any, reason: str) -> None:
    with pytest.raises(InvalidConfigError, match=reason):
        changes(iceberg_schema(_columns(pa.struct(old))), _columns(pa.struct(new)))


def test_pinned_formats_are_read_as_they_were_written() -> None:
    schema = SchemaText("AVRO", '{"type": "string"}', (("a", "{}"), ("b", "[]")))
    pinned = PinnedFormats(options={"valueFormat": "avro"}, schemas={"value": schema}, permissive=True)
    assert decode_formats(encode_formats(pinned)) == pinned
    assert pinned.source_options() == {
        "valueFormat": "avro",
        "valueSchema": '{"type": "string"}',
        "valueReferences": '{"a": "{}", "b": "[]"}',
        "mode": "permissive",
    }
