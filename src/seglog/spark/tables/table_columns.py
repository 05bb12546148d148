"""A table's columns in Spark, and the log's tail with these columns, whichever schema it was decoded with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from seglog.core.errors import InvalidConfigError
from seglog.records.columns import FIELDS
from seglog.records.timestamps import OUT_OF_RANGE
from seglog.spark.read.schema import COLUMNS
from seglog.table.files.record_times import FIRST_MICROS, LAST_MICROS
from seglog.table.iceberg.time_range import TimeRange

_SOURCES: Final = {field.name: field for field in COLUMNS.fields}


def spark_schema(columns: pa.Schema, names: Sequence[str] | None = None) -> StructType:
    """Columns of files as Spark reads them, or those of ``names``. Raises `InvalidConfigError` for an unknown one."""
    for name in names or ():
        if name not in columns.names:
            raise InvalidConfigError(f"there is no column {name!r}; there are {', '.join(columns.names)}")
    return StructType([_field(columns.field(name)) for name in names or columns.names])


def _field(field: pa.Field) -> StructField:
    if field.name in _SOURCES and field.type == FIELDS[field.name].type:
        return _SOURCES[field.name]
    return StructField(field.name, from_arrow_type(field.type))


def within(frame: DataFrame, times: TimeRange) -> DataFrame:
    """The records with timestamps of these times."""
    if times.since is not None:
        frame = frame.where(f.col("timestamp") >= f.lit(times.since))
    return frame if times.until is None else frame.where(f.col("timestamp") < f.lit(times.until))


def with_table_times(frame: DataFrame, *, null_timestamps: bool) -> DataFrame:
    """Records of the log with the timestamps that a table has (`seglog.table.files.record_times`), which also have
    topic, partition and offset. One out of range is null, or ends the query with its place."""
    micros = f.unix_micros("timestamp")
    text = f.concat_ws(
        "",
        *(f.lit("topic "), f.col("topic"), f.lit(", partition "), f.col("partition"), f.lit(", offset ")),
        *(f.col("offset"), f.lit(": the timestamp "), f.floor(micros / 1000), f.lit(f" {OUT_OF_RANGE}")),
    )
    otherwise = f.lit(None) if null_timestamps else f.raise_error(text)
    is_within = f.col("timestamp").isNull() | micros.between(FIRST_MICROS, LAST_MICROS)
    return frame.withColumn("timestamp", f.when(is_within, f.col("timestamp")).otherwise(otherwise))


def with_columns(frame: DataFrame, schema: StructType) -> DataFrame:
    """A frame with exactly these columns and types, by name, at any depth: null where it has none.

    The types that it has can be widened to those of ``schema``.
    """
    there = frame.schema
    return frame.select(
        *(
            _conformed(f.col(one.name), there[one.name].dataType, one.dataType).alias(one.name)
            if one.name in there.names
            else f.lit(None).cast(one.dataType).alias(one.name)
            for one in schema.fields
        )
    )


def _conformed(column: Column, has: DataType, wanted: DataType) -> Column:
    if has == wanted:
        return column
    if isinstance(has, StructType) and isinstance(wanted, StructType):
        return _struct(column, has, wanted)
    if isinstance(has, ArrayType) and isinstance(wanted, ArrayType):
        return f.transform(column, lambda one: _conformed(one, has.elementType, wanted.elementType))
    if isinstance(has, MapType) and isinstance(wanted, MapType):
        return f.transform_values(column, lambda _, one: _conformed(one, has.valueType, wanted.valueType))
    return column.cast(wanted)


def _struct(column: Column, has: StructType, wanted: StructType) -> Column:
    fields = [
        _conformed(column.getField(one.name), has[one.name].dataType, one.dataType).alias(one.name)
        if one.name in has.names
        else f.lit(None).cast(one.dataType).alias(one.name)
        for one in wanted.fields
    ]
    return f.when(column.isNotNull(), f.struct(*fields))
