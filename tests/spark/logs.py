"""Small logs for the source's tests, and records as rows that tests compare, without a JVM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql.types import StructType

from pyspark_seglog import DefaultSource
from seglog.records.compression import Codec
from seglog.records.record import NewRecord, encode_batch
from seglog.spark.read.batch_reader import SeglogReader
from tests.kafka.records import ConsumedRecord

_TYPES: Final = {"NoTimestampType": -1, "CreateTime": 0, "LogAppendTime": 1}
_COLUMNS: Final = ("topic", "partition", "offset", "timestamp", "timestampType", "key", "value", "headers")


def make_reader(options: Mapping[str, str], schema: StructType | None = None) -> SeglogReader:
    source = DefaultSource(dict(options))
    reader = source.reader(schema=schema or source.schema())
    assert isinstance(reader, SeglogReader)
    return reader


def batches(reader: SeglogReader) -> Iterator[pa.RecordBatch]:
    for partition in reader.partitions():
        yield from reader.read(partition)


def rows(reader: SeglogReader) -> list[tuple[object, ...]]:
    """The rows of all records as `as_row` makes them, in the reader's order."""
    found = []
    for batch in batches(reader):
        for row in batch.to_pylist():
            headers = row["headers"]
            row["headers"] = headers and tuple((header["key"], header["value"]) for header in headers)
            row["timestamp"] = round(row["timestamp"].timestamp() * 1000)
            found.append(tuple(row[name] for name in _COLUMNS))
    return found


def write_partition(
    path: Path, batches: Sequence[Sequence[NewRecord]], *, base_offset: int = 0, codec: Codec = Codec.NONE
) -> Path:
    """A segment of these batches, without index; its file."""
    path.mkdir(parents=True, exist_ok=True)
    log = path / f"{base_offset:020d}.log"
    data, offset = b"", base_offset
    for batch in batches:
        data += encode_batch(batch, base_offset=offset, codec=codec)
        offset += len(batch)
    log.write_bytes(data)
    return log


def offsets(reader: SeglogReader) -> list[int]:
    """Of all records, in the reader's order; ``offset`` is among the columns."""
    return [offset for batch in batches(reader) for offset in batch.column("offset").to_pylist()]


def as_row(record: ConsumedRecord) -> tuple[object, ...]:
    """Topic, partition, offset, timestamp in ms, timestamp type, key, value, headers (None for none)."""
    return (
        record.topic,
        record.partition,
        record.offset,
        record.timestamp,
        _TYPES[record.timestamp_type],
        record.key,
        record.value,
        record.headers or None,
    )
