"""The view ``latest`` without a JVM, and dictionaries to hold it to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import pyarrow as pa

from pyspark_seglog import DefaultSource
from seglog.core.types import TopicPartition
from tests.kafka.records import ConsumedRecord

Newest = dict[tuple[TopicPartition, bytes], tuple[int, bytes]]
"""By partition and key: offset and value."""


def latest(options: Mapping[str, str]) -> Newest:
    source = DefaultSource({"view": "latest", **options})
    reader = source.reader(schema=source.schema())
    found: Newest = {}
    for partition in reader.partitions():
        for batch in reader.read(partition):
            assert isinstance(batch, pa.RecordBatch)
            batch.validate(full=True)
            for row in batch.to_pylist():
                place = TopicPartition(row["topic"], row["partition"]), row["key"]
                assert place not in found
                found[place] = row["offset"], row["value"]
    return found


def latest_in(path: Path, **options: str) -> Newest:
    return latest({"path": str(path), **options})


def by_dictionary(records: Iterable[ConsumedRecord]) -> Newest:
    """The newest records, as a consumer has them that puts each record into a dictionary."""
    found: Newest = {}
    for one in records:
        assert one.key is not None
        place = TopicPartition(one.topic, one.partition), one.key
        found.pop(place, None)
        if one.value is not None:
            found[place] = one.offset, one.value
    return found
