"""How a table's keys and values are decoded, as the table itself says it. Pure.

The property ``seglog.formats`` of the Iceberg table has the options that a run was given, without secrets, and the
schemas that it read with::

    {"version": 1, "permissive": false, "options": {"valueFormat": "avro", "schema.registry.url": "http://…"},
     "schemas": {"value": ["AVRO", "{…}", [["name", "{…}"]]]}}

So the log's tail is decoded with the very schema of the table's newest files, whatever the registry has meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from seglog.core.errors import CorruptCheckpointError, InvalidConfigError
from seglog.records.columns import SCHEMA
from seglog.values.batch_decoder import bytes_column
from seglog.values.reader_schema import ReadFormats
from seglog.values.schemas import SchemaText
from seglog.values.value_options import COLUMNS, NAMES, SECRETS

FORMATS: Final = "seglog.formats"
"""The table's property."""
_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedFormats:
    """``options`` by their names, without schemas and secrets; ``schemas`` by column. ``permissive``: a value that
    cannot be decoded is null, and a column has its bytes."""

    options: Mapping[str, str]
    schemas: Mapping[str, SchemaText]
    permissive: bool = False

    def source_options(self) -> dict[str, str]:
        """The options by which the source reads with these schemas."""
        found = dict(self.options)
        for column, schema in self.schemas.items():
            found[f"{column}Schema"] = schema.text
            if schema.references:
                found[f"{column}References"] = json.dumps(dict(schema.references))
        return found | {"mode": "permissive"} if self.permissive else found


def pin(options: Mapping[str, str], chosen: ReadFormats, *, permissive: bool) -> PinnedFormats:
    """The formats of a run: its options, and the schemas that were chosen by them."""
    lower = {name.lower(): text for name, text in options.items()}
    left_out = SECRETS | {f"{column}{name}" for column in COLUMNS for name in ("Schema", "References", "SchemaId")}
    return PinnedFormats(
        options={name: lower[name.lower()] for name in NAMES if name.lower() in lower and name not in left_out},
        schemas={one.column.column: one.schema for one in chosen.columns},
        permissive=permissive,
    )


def columns_of(chosen: ReadFormats | None, *, permissive: bool) -> pa.Schema:
    """The columns of records that are decoded so: those of the source, with types, and at the end the bytes of values
    that could not be decoded."""
    columns = SCHEMA
    if chosen is None:
        return columns
    for one in chosen.columns:
        name = one.column.column
        made = chosen.format_of(name)
        assert made is not None
        columns = columns.set(columns.get_field_index(name), pa.field(name, made.type))
    if permissive:
        for one in chosen.columns:
            columns = columns.append(pa.field(bytes_column(one.column.column), pa.binary()))
    return columns


def check_same_formats(known: PinnedFormats | None, given: PinnedFormats | None) -> None:
    """Raise `InvalidConfigError` unless the same columns of a table are decoded as before, from the same format."""
    for column in COLUMNS:
        before, now = (
            None if one is None else one.options.get(f"{column}Format", "").lower() or None for one in (known, given)
        )
        if before == now:
            continue
        if before is None:
            raise InvalidConfigError(
                f"option {column}Format is {now}, and the table has the column {column} as bytes: build another table"
            )
        raise InvalidConfigError(
            f"the table has the column {column} with the types of {column}Format={before}: give that option, "
            f"{'not ' + now if now is not None else 'or build another table'}"
        )


def encode_formats(formats: PinnedFormats) -> str:
    content = {
        "version": _VERSION,
        "permissive": formats.permissive,
        "options": dict(formats.options),
        "schemas": {column: [one.kind, one.text, one.references] for column, one in formats.schemas.items()},
    }
    return json.dumps(content, separators=(",", ":"))


def decode_formats(text: str) -> PinnedFormats:
    """Raises `CorruptCheckpointError` if this is not such a text."""
    try:
        content = json.loads(text)
        if content["version"] != _VERSION:
            raise ValueError(f"version {content['version']}, and this seglog knows {_VERSION}")
        return PinnedFormats(
            options={str(name): str(value) for name, value in content["options"].items()},
            schemas={
                str(column): SchemaText(str(kind), str(schema), tuple((str(a), str(b)) for a, b in references))
                for column, (kind, schema, references) in content["schemas"].items()
            },
            permissive=bool(content["permissive"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptCheckpointError(f"the table's property {FORMATS} is not one of seglog's: {error}") from error
