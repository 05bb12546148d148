"""Columns of a frame in the type that a schema needs."""

from __future__ import annotations

import pyarrow as pa

from seglog.core.errors import InvalidConfigError


def cast_column(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """A column with the type that the schema needs. `InvalidConfigError` if Arrow has no such cast."""
    if column.type == wanted:
        return column
    try:
        return column.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise InvalidConfigError(f"the column is {column.type}; the schema needs {wanted}: {error}") from error
