"""The types that Spark gives to columns of decoded keys and values."""

from __future__ import annotations

from pyspark.sql.types import BinaryType, DataType

from seglog.values.reader_schema import ReadFormats


def typed_columns(formats: ReadFormats | None, *, permissive: bool) -> dict[str, DataType]:
    """The columns that are decoded, and those with the bytes of what could not be, with their types in Spark."""
    if formats is None:
        return {}
    from pyspark.sql.pandas.types import from_arrow_type

    from seglog.values.batch_decoder import bytes_column

    types: dict[str, DataType] = {}
    for one in formats.columns:
        made = formats.format_of(one.column.column)
        assert made is not None
        types[one.column.column] = from_arrow_type(made.type)
    if permissive:
        types |= {bytes_column(one.column.column): BinaryType() for one in formats.columns}
    return types
