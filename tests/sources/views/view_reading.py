"""A view's reader, as Spark calls it: no JVM."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import StructType

from pyspark_seglog import DefaultSource

Row = dict[str, Any]


def reader(view: str, path: Path, options: Mapping[str, str] | None = None) -> tuple[DataSourceReader, StructType]:
    source = DefaultSource({"path": str(path), "view": view, **(options or {})})
    schema = source.schema()
    return source.reader(schema=schema), schema


def read(view: str, path: Path, options: Mapping[str, str] | None = None) -> list[Row]:
    """All rows of a view, in the order of its tasks."""
    return rows_of(DefaultSource({"path": str(path), "view": view, **(options or {})}))


def rows_of(source: DefaultSource) -> list[Row]:
    """All rows of a source whose options name a view."""
    schema = source.schema()
    made = source.reader(schema=schema)
    found: list[Row] = []
    for partition in made.partitions():
        for batch in made.read(partition):
            assert isinstance(batch, pa.RecordBatch)
            assert batch.schema.names == schema.fieldNames()
            batch.validate(full=True)
            found += batch.to_pylist()
    return found
