"""Checks of a Produce request before the log sees it, and the answer to a batch that a log refuses.

Rules of Kafka 4.4's ``KafkaApis.handleProduceRequest`` and ``ProduceRequest.validateRecords``: from version 3 on, the
first that is served, a partition gets one batch of magic 2. Bytes that are not even that spoil the whole request, and
so does a batch of a transaction without a transactional id.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

from seglog.broker.requests import code_of
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import (
    AppendError,
    CorruptError,
    InvalidTimestampError,
    LogClosedError,
    LogDirOfflineError,
    NotLeaderError,
    RecordListTooLargeError,
    RecordTooLargeError,
    SeglogError,
)
from seglog.core.types import NO_OFFSET, ProducerIdAndEpoch
from seglog.protocol.produce import PartitionAnswer, PartitionData, RecordError, TopicData
from seglog.records.batch import BATCH_OVERHEAD, CODEC_MASK, LOG_OVERHEAD, MAGIC_POSITION, TRANSACTIONAL_BIT
from seglog.records.compression import Codec
from seglog.replication.replica import Replica

CORRUPT_MESSAGE: Final = int(ErrorCode.CORRUPT_MESSAGE)
INVALID_PRODUCER_ID_MAPPING: Final = int(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Final = int(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
UNSUPPORTED_COMPRESSION_TYPE: Final = int(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
INVALID_RECORD: Final = int(ErrorCode.INVALID_RECORD)
_ZSTD: Final = int(Codec.ZSTD)
_ZSTD_FROM: Final = 7
_SMALLEST: Final = 14
"""The least size after the length field of an entry of any format (``ByteBufferLogInputStream.nextBatchSize``)."""
_TO_MAGIC: Final = 17
_START: Final = Struct(">8xi4xB4xh")
"""Length, magic and attributes of a batch."""
_LENGTH: Final = Struct(">8xi")
_PRODUCER: Final = Struct(">43xqhi")
"""Producer id, epoch and first sequence of a batch."""
_NAMED: Final = 3
_UNTOLD: Final = (
    CorruptError,
    RecordTooLargeError,
    RecordListTooLargeError,
    LogDirOfflineError,
    NotLeaderError,
    LogClosedError,
    OSError,
)
"""Errors that Kafka expects, and for which it does not return the log start offset."""


class Refusal(NamedTuple):
    code: int
    message: str | None = None


def is_plain_batch(version: int, records: memoryview | None) -> bool:
    """One batch of magic 2 outside of transactions, as nearly all are. The log checks its content."""
    if records is None or len(records) < BATCH_OVERHEAD:
        return False
    length, magic, attributes = _START.unpack_from(records)
    return (
        magic == 2
        and length + LOG_OVERHEAD == len(records)
        and not attributes & TRANSACTIONAL_BIT
        and (version >= _ZSTD_FROM or attributes & CODEC_MASK != _ZSTD)
    )


def are_plain_batches(version: int, topics: Sequence[TopicData]) -> bool:
    """Whether `is_plain_batch` holds for every partition of a request."""
    for _, partitions in topics:
        for _, records in partitions:
            if not is_plain_batch(version, records):
                return False
    return True


def transactional_producer(records: memoryview | None) -> tuple[ProducerIdAndEpoch, int] | None:
    """The producer of a whole batch that is part of a transaction, and the batch's first sequence."""
    if records is None or len(records) < BATCH_OVERHEAD:
        return None
    length, magic, attributes = _START.unpack_from(records)
    if magic != 2 or not attributes & TRANSACTIONAL_BIT or length + LOG_OVERHEAD > len(records):
        return None
    producer_id, epoch, sequence = _PRODUCER.unpack_from(records)
    return ProducerIdAndEpoch(producer_id, epoch), sequence


def is_of_new_producer(records: memoryview, known: Container[int]) -> bool:
    """Whether a batch has a producer id that is not ``known``."""
    if len(records) < BATCH_OVERHEAD:
        return False
    producer_id = _PRODUCER.unpack_from(records)[0]
    return producer_id >= 0 and producer_id not in known


def refuse_all(topics: Sequence[TopicData], transactional_id: str | None) -> Refusal | None:
    """Why all of the request is refused, if it is."""
    for _, partitions in topics:
        for _, records in partitions:
            try:
                first = next(_batches(records), None)
            except CorruptError as error:
                return Refusal(CORRUPT_MESSAGE, str(error))
            if transactional_id is None and first is not None and first[1] == 2 and first[2] & TRANSACTIONAL_BIT:
                return Refusal(TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    return None


def refuse(version: int, records: memoryview | None) -> Refusal | None:
    """Why a partition's records never reach the log; None if they do."""
    batches = _batches(records)
    try:
        first = next(batches, None)
        if first is None:
            return Refusal(INVALID_RECORD, "no whole batch")
        if first[1] != 2:
            return Refusal(INVALID_RECORD, f"messages of magic {first[1]}: from version 3 on batches have magic 2")
        if version < _ZSTD_FROM and first[2] & CODEC_MASK == _ZSTD:
            return Refusal(UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs version {_ZSTD_FROM} of Produce, not {version}")
        if next(batches, None) is not None:
            return Refusal(INVALID_RECORD, "more than one batch")
    except CorruptError as error:
        return Refusal(CORRUPT_MESSAGE, str(error))
    return None


def _batches(records: memoryview | None) -> Iterator[tuple[int, int, int]]:
    """Position, magic and attributes of each whole batch or message. `CorruptError` for bytes that cannot be one."""
    position = 0
    size = 0 if records is None else len(records)
    while records is not None and size - position >= LOG_OVERHEAD:
        (length,) = _LENGTH.unpack_from(records, position)
        if length < _SMALLEST:
            raise CorruptError(f"a batch of {length} bytes", position=position)
        if size - position < _TO_MAGIC:
            return
        magic = records[position + MAGIC_POSITION]
        if magic > 2:
            raise CorruptError(f"unknown magic {magic}", position=position)
        if length + LOG_OVERHEAD > size - position:
            return
        attributes = _START.unpack_from(records, position)[2] if length + LOG_OVERHEAD >= _START.size else 0
        yield position, magic, attributes
        position += length + LOG_OVERHEAD


def without_repeats(topics: Sequence[TopicData]) -> Sequence[TopicData]:
    """Each partition once. The last mention wins, as in Kafka's own map."""
    if len(topics) == 1 and len(topics[0].partitions) == 1:
        return topics
    found: dict[str | UUID, dict[int, PartitionData]] = {}
    for topic, partitions in topics:
        found.setdefault(topic, {}).update((data.partition, data) for data in partitions)
    return [TopicData(topic, list(partitions.values())) for topic, partitions in found.items()]


def refused(partition: Replica, error: SeglogError | OSError) -> PartitionAnswer:
    """The answer for a batch that the log refused."""
    number = partition.topic_partition.partition
    log_start = NO_OFFSET if isinstance(error, _UNTOLD) else partition.log.log_start_offset
    found = error.records if isinstance(error, AppendError) else ()
    code = code_of(error)
    if not found:
        return PartitionAnswer(number, code, log_start_offset=log_start, error_message=str(error))
    name = str(partition.topic_partition)
    records = [RecordError(index, why.replace(AppendError.PARTITION, name)) for index, why in found]
    return PartitionAnswer(
        number,
        code,
        log_start_offset=log_start,
        record_errors=records,
        error_message=_summary(error, records),
    )


def _summary(error: SeglogError | OSError, records: Sequence[RecordError]) -> str:
    if isinstance(error, InvalidTimestampError):
        return "One or more records have been rejected due to invalid timestamp"
    shown = ", ".join(f"RecordError(batchIndex={record}, message='{why}')" for record, why in records[:_NAMED])
    return (
        f"One or more records have been rejected due to {len(records)} record errors in total, and only showing the "
        f"first three errors at most: [{shown}]"
    )
