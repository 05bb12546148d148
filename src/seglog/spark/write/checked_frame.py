"""A frame and the options of its sink, checked, before anything is written."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql.types import StructType

from seglog.core.errors import InvalidConfigError
from seglog.core.fs import OsFs
from seglog.spark.write.write_options import WriteOptions, check_columns, check_marks, check_mode, parse_write_options
from seglog.values.batch_encoder import WriteFormats, resolve_write_formats

QUERY_ID: Final = "sql.streaming.queryId"
"""The same after a query restarts from its checkpoint."""
BATCH_ID: Final = "streaming.sql.batchId"
"""Local properties of a stream's tasks (``StreamExecution.scala``, ``MicroBatchExecution.scala``)."""


@dataclass(frozen=True, slots=True)
class CheckedFrame:
    """``formats`` says which columns are encoded. Plain values: it is sent to Spark's workers."""

    options: WriteOptions
    formats: WriteFormats


def check_frame(schema: StructType, options: Mapping[str, str], *, overwrite: bool, stream: bool) -> CheckedFrame:
    """`InvalidConfigError` names the option or column that cannot be; others are warned of."""
    checked = parse_write_options(options)
    if not stream:
        check_mode(overwrite=overwrite)
    elif checked.transaction is not None:
        raise InvalidConfigError(
            "options txnAppId and txnVersion: the sink of a stream sets them from the query and the batch id"
        )
    columns = {field.name: field.dataType.simpleString() for field in schema.fields}
    formats = resolve_write_formats(checked.formats, checked.topic, OsFs())
    check_columns(columns, checked.topic, formats.names)
    check_marks(checked)
    _warn(schema, checked)
    return CheckedFrame(checked, formats)


def check_all_known(known: int, messages: int) -> None:
    """Refuse a commit with messages of other tasks than this sink's: a continuous trigger runs no Python in its tasks,
    so it would lose all rows."""
    if known != messages:
        raise InvalidConfigError(
            f"{messages - known} of {messages} tasks did not write through this sink, and their rows are lost: a "
            "continuous trigger is not supported; use trigger(processingTime=…)"
        )


def _warn(schema: StructType, options: WriteOptions) -> None:
    """Warn of options that are ignored and of columns that are slow."""
    if options.ignored:
        why = "writes files and connects to no broker: it ignores" if options.brokers is None else "ignores"
        warnings.warn(f"seglog {why} {', '.join(options.ignored)}", stacklevel=2)
    for field in schema.fields:
        if field.name == "headers" and field.nullable and field.dataType.simpleString() != "array<void>":
            warnings.warn(
                "column headers may be NULL, and Spark needs quadratic time to hand over NULL arrays: write "
                "coalesce(headers, array()) instead, as seglog.spark.to_log(df, path) does, or use small batches: "
                "spark.sql.execution.arrow.maxRecordsPerBatch=1000",
                stacklevel=2,
            )
