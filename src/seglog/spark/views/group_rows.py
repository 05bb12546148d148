"""What the records of ``__consumer_offsets`` say, by the same schemas as `seglog dump --offsets-decoder`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from seglog.records import kafka_schemas as schemas
from seglog.records.kafka_messages import (
    Message,
    MessageError,
    MessageReader,
    json_text,
    parse_schemas,
    read_message,
    to_json,
)
from seglog.spark.views.tables import rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OFFSET_COMMITS: Final = (0, 1)
_WITH_EPOCHS: Final = 3
_EXPIRING: Final = 1
"""Versions of ``OffsetCommitValue``: leader epochs are there from one on, the time of expiry in one only."""
_LAST_DAY_MS: Final = 253_402_300_799_999
_FROM_THE_LOG: Final = {"logPartition": "partition", "logOffset": "offset", "timestamp": "timestamp"}


def current_offsets(frame: DataFrame) -> DataFrame:
    """Of the view ``group-offsets``, what holds now: the last commit of each group, topic and partition, if any."""
    from pyspark.sql import functions as f

    latest = (
        frame.where("type in ('OffsetCommit', 'LegacyOffsetCommit')")
        .groupBy("group", "topic", "partition")
        .agg(f.max_by(f.struct("*"), "logOffset").alias("latest"))
    )
    return latest.select("latest.*").where("not isDeleted")


def group_rows(records: pa.RecordBatch, arrow: pa.Schema) -> pa.RecordBatch:
    """A row for each record; ``records`` has key, value, partition, offset and timestamp."""
    rows = [
        describe(key, value)
        for key, value in zip(records.column("key").to_pylist(), records.column("value").to_pylist(), strict=True)
    ]

    def build(name: str) -> pa.Array:
        if name in _FROM_THE_LOG:
            return records.column(_FROM_THE_LOG[name])
        return pa.array([row.get(name) for row in rows], arrow.field(name).type)

    return rows_of(arrow, build)


def describe(key: bytes | None, value: bytes | None) -> dict[str, Any]:
    """The columns that a record's key and value fill."""
    row: dict[str, Any] = {"isDeleted": value is None}
    if key is None:
        return {**row, "metadata": "a record without a key is none of such a topic's"}
    try:
        reader = MessageReader(key)
        type_ = reader.integer("int16")
        message = _message(schemas.GROUP_KEYS, type_)
        fields = read_message(message, reader, 0)
        row |= {"type": message.name.removesuffix("Key"), "group": fields.get("group", fields.get("groupId"))}
        if type_ in _OFFSET_COMMITS:
            row |= {"topic": fields["topic"], "partition": fields["partition"]}
        if value is not None:
            row |= _value(type_, MessageReader(value))
    except MessageError as error:
        row |= {"type": None, "metadata": f"cannot be read: {error}"}
    return row


def _value(type_: int, reader: MessageReader) -> dict[str, Any]:
    message = _message(schemas.GROUP_VALUES, type_)
    version = reader.integer("int16")
    if not 0 <= version <= message.highest:
        raise MessageError(f"unknown version {version} of {message.name}")
    fields = read_message(message, reader, version)
    if type_ not in _OFFSET_COMMITS:
        return {"json": json_text(to_json(message, fields, version))}
    return {
        "offset": fields["offset"],
        "leaderEpoch": fields["leaderEpoch"] if type_ == 1 and version >= _WITH_EPOCHS else None,
        "metadata": fields["metadata"],
        "commitTimestamp": _microseconds(fields["commitTimestamp"]),
        "expireTimestamp": _microseconds(fields["expireTimestamp"]) if type_ == 1 and version == _EXPIRING else None,
    }


def _message(table: str, type_: int) -> Message:
    message = parse_schemas(table).get(type_)
    if message is None:
        raise MessageError(f"unknown type {type_}")
    return message


def _microseconds(milliseconds: Any) -> int | None:
    return milliseconds * 1000 if 0 <= milliseconds <= _LAST_DAY_MS else None
