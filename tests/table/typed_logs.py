"""Logs whose values have the types of a schema, in an older and a newer version, and hashes of their rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import date
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

import seglog
from seglog.records.record import NewRecord
from tests.table.tables import TIME_MS, append
from tests.values.avro.test_decoder import encode
from tests.values.batches import framed


def _record(called: str, /, **fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": called, "fields": [{"name": one, "type": type_} for one, type_ in fields.items()]}


def _optional(schema: dict[str, Any], /, **fields: Any) -> dict[str, Any]:
    """The record with more fields, each null by default."""
    more = [{"name": one, "type": ["null", type_], "default": None} for one, type_ in fields.items()]
    return {**schema, "fields": [*schema["fields"], *more]}


OLD: Final = _record(
    "Flight",
    n="int",
    place=_record("Place", x="float"),
    legs={"type": "array", "items": _record("Leg", code="string")},
    counts={"type": "map", "values": "int"},
    day={"type": "int", "logicalType": "date"},
    cost={"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2},
    name="string",
)
NEW: Final = _optional(
    _record(
        "Flight",
        n="long",
        place=_optional(_record("Place", x="double"), y="string"),
        legs={"type": "array", "items": _optional(_record("Leg", code="string"), gate="int")},
        counts={"type": "map", "values": "long"},
        day=["null", {"type": "int", "logicalType": "date"}],
        cost={"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2},
    ),
    title="string",
)
"""Fields added at three depths, types widened, a field made optional, and ``name`` renamed to ``title``."""


def old_value(n: int) -> dict[str, Any]:
    return {
        "n": n,
        "place": {"x": n / 4},
        "legs": [{"code": f"E{leg}"} for leg in range(n % 3)],
        "counts": {"a": n} if n % 2 else {},
        "day": date(2013, 1, 1 + n % 28),
        "cost": Decimal(n).scaleb(-2),
        "name": f"N{n % 5}",
    }


def new_value(n: int) -> dict[str, Any]:
    old = old_value(n)
    return {
        **{name: old[name] for name in ("counts", "cost")},
        "n": n + (1 << 40),
        "place": {"x": n / 3, "y": f"y{n}" if n % 2 else None},
        "legs": [{"code": leg["code"], "gate": n} for leg in old["legs"]],
        "day": old["day"] if n % 3 else None,
        "title": f"T{n % 5}" if n % 4 else None,
    }


def write(path: Path, schema: Any, values: Sequence[Any], *, number: int | None = None, partition: int = 0) -> None:
    """Values in Avro, behind the id of a registered schema if there is one; None is a tombstone, bytes stay bytes."""
    records = [
        NewRecord(None if value is None else _encoded(schema, value, number), b"k%d" % at, TIME_MS + at)
        for at, value in enumerate(values)
    ]
    append(path, records, partition=partition)


def _encoded(schema: Any, value: Any, number: int | None) -> bytes:
    if isinstance(value, bytes):
        return value
    return encode(schema, value) if number is None else framed(number, schema, value)


def scanned_with(path: Path, options: Mapping[str, str]) -> pa.Table:
    """The committed records of a log with types; ``options`` are the source's."""
    schema = {name: text for name, text in options.items() if name not in ("valueFormat", "keyFormat", "mode")}
    return seglog.scan(
        path,
        topics="flights",
        isolation_level="read_committed",
        value_format=options.get("valueFormat"),
        key_format=options.get("keyFormat"),
        format_options=schema,
        permissive=options.get("mode") == "permissive",
    ).read_all()


def hashes(rows: pa.Table, columns: Sequence[str] | None = None) -> dict[int, str]:
    """A hash of the rows of each partition, by offset. A map is its entries, whatever a reader makes of it, and no
    headers are none (pyiceberg 0.12 returns an empty list)."""
    found: dict[int, list[str]] = {}
    names = sorted(columns or rows.schema.names)
    for row in sorted(rows.select(names).to_pylist(), key=lambda row: (row["partition"], row["offset"])):
        row["headers"] = row["headers"] or None
        found.setdefault(row["partition"], []).append(json.dumps(_plain(row), sort_keys=True, default=str))
    return {number: sha256("\n".join(lines).encode()).hexdigest() for number, lines in found.items()}


def without(rows: pa.Table, name: str) -> pa.Table:
    """The rows without a field of their values."""
    values = [
        None if value is None else {one: part for one, part in value.items() if one != name}
        for value in rows.column("value").to_pylist()
    ]
    found = [{**row, "value": value} for row, value in zip(rows.to_pylist(), values, strict=True)]
    kind = rows.schema.field("value").type
    assert isinstance(kind, pa.StructType)
    kept = pa.struct([field for field in kind if field.name != name])
    at = rows.schema.get_field_index("value")
    return pa.Table.from_pylist(found, schema=rows.schema.set(at, pa.field("value", kept)))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list):
        entries = [{"key": one[0], "value": one[1]} if isinstance(one, tuple) else one for one in value]
        return [_plain(one) for one in entries]
    return value.hex() if isinstance(value, bytes) else value
