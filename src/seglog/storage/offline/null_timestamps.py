"""Reports the timestamps that are null because they are out of range, and the caller asked for null."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

_log: Final = logging.getLogger("seglog.timestamps")


def log_null_timestamps(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches; then a warning with the number of timestamps that are null, if there are any."""
    found = 0
    for batch in batches:
        if "timestamp" in batch.schema.names:
            found += batch.column("timestamp").null_count
        yield batch
    if found:
        _log.warning("seglog: permissive: %d timestamps are out of range, and null (not milliseconds?)", found)
