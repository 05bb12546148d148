"""Records as rows that tests compare."""

from __future__ import annotations

from typing import Final

from tests.kafka.records import ConsumedRecord

_TYPES: Final = {"NoTimestampType": -1, "CreateTime": 0, "LogAppendTime": 1}


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
