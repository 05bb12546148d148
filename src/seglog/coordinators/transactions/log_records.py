"""Records of ``__transaction_state``: bytes as Kafka 4.4 writes them, of both versions that it reads.

A key begins with its type (int16), a value with its version (int16). Version 1 is flexible: lengths are varints and one
too large, and each struct ends in tagged fields. The last state of a transactional id counts; a record without a value
deletes it.

=========== ===========================================================================================================
key 0       transactionalId string
value 0, 1  producerId int64, producerEpoch int16, transactionTimeoutMs int32, transactionStatus int8,
            transactionPartitions [topic string, partitionIds int32[]]? (null in Empty),
            transactionLastUpdateTimestampMs int64, transactionStartTimestampMs int64,
            tag 0: previousProducerId int64, tag 1: nextProducerId int64, tag 2: clientTransactionVersion int16,
            tag 3: nextProducerEpoch int16 (all from version 1 on, only where they have a value)
=========== ===========================================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final

from seglog.coordinators.transactions.transaction import EPOCH_BUMPS_FROM, Transaction, TransactionState
from seglog.core.errors import CorruptRecordError, InvalidRequestError, UnsupportedFormatError
from seglog.core.types import NO_PRODUCER_ID, Buffer, TopicPartition
from seglog.core.utf8 import decode_utf8
from seglog.protocol.wire import WireReader, uvarint

_KEY: Final = 0
_HIGHEST: Final = 1
_PRODUCER: Final = Struct(">qhib")
"""Producer id, producer epoch, timeout and state."""
_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
_INT64: Final = Struct(">q")
_TIMES: Final = Struct(">qq")
"""Last update and start."""
_PREVIOUS_ID, _NEXT_ID, _CLIENT_VERSION = range(3)
_MAX_STRING: Final = 2**15 - 1


def encode_key(transactional_id: str) -> bytes:
    """
    >>> encode_key("a").hex()
    '0000000161'
    """
    return _INT16.pack(_KEY) + _string(transactional_id, flexible=False)


def encode_value(transaction: Transaction, version: int) -> bytes:
    """``version`` is the cluster's transaction version: from 2 on the record is flexible."""
    flexible = version >= EPOCH_BUMPS_FROM
    return b"".join(
        (
            _INT16.pack(int(flexible)),
            _PRODUCER.pack(transaction.producer_id, transaction.epoch, transaction.timeout_ms, int(transaction.state)),
            _partitions(transaction, flexible=flexible),
            _TIMES.pack(transaction.updated_ms, transaction.start_ms),
            _tags(transaction) if flexible else b"",
        )
    )


def _partitions(transaction: Transaction, *, flexible: bool) -> bytes:
    if transaction.state is TransactionState.EMPTY:
        return b"\x00" if flexible else _INT32.pack(-1)
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(transaction.partitions):
        topics.setdefault(topic, []).append(number)
    parts = [_count(len(topics), flexible=flexible)]
    for topic, numbers in topics.items():
        parts += (_string(topic, flexible=flexible), _count(len(numbers), flexible=flexible))
        parts += map(_INT32.pack, numbers)
        parts.append(b"\x00" if flexible else b"")
    return b"".join(parts)


def _tags(transaction: Transaction) -> bytes:
    fields = []
    if transaction.previous_producer_id != NO_PRODUCER_ID:
        fields.append((_PREVIOUS_ID, _INT64.pack(transaction.previous_producer_id)))
    if transaction.next_producer_id != NO_PRODUCER_ID:
        fields.append((_NEXT_ID, _INT64.pack(transaction.next_producer_id)))
    if transaction.version:
        fields.append((_CLIENT_VERSION, _INT16.pack(transaction.version)))
    return uvarint(len(fields)) + b"".join(uvarint(tag) + uvarint(len(data)) + data for tag, data in fields)


def _count(count: int, *, flexible: bool) -> bytes:
    return uvarint(count + 1) if flexible else _INT32.pack(count)


def _string(text: str, *, flexible: bool) -> bytes:
    data = text.encode(errors="replace")
    if len(data) > _MAX_STRING:
        raise InvalidRequestError(f"a transactional id of {len(data)} bytes; at most {_MAX_STRING} fit into a record")
    return (uvarint(len(data) + 1) if flexible else _INT16.pack(len(data))) + data


def decode(key: Buffer, value: Buffer | None) -> tuple[str, Transaction | None] | None:
    """The transactional id of a record and its state, None where that is deleted; None for a record of another type.

    Raises `CorruptRecordError`, and `UnsupportedFormatError` for a value of a version that Kafka 4.4 does not know.
    Bytes behind the last field are passed over, as Kafka does.
    """
    try:
        reader = WireReader(key)
        if reader.integer("int16") != _KEY:
            return None
        transactional_id = decode_utf8(reader.take(reader.integer("int16")))
        return transactional_id, None if value is None else _decode_value(transactional_id, WireReader(value))
    except InvalidRequestError as error:
        raise CorruptRecordError(f"a record of a transaction cannot be read: {error}") from error


def _decode_value(transactional_id: str, reader: WireReader) -> Transaction:
    version = reader.integer("int16")
    if not 0 <= version <= _HIGHEST:
        raise UnsupportedFormatError(f"version {version} of a transaction's record; {_HIGHEST} is the last one known")
    flexible = version == 1
    producer_id, epoch, timeout_ms, status = reader.numbers(_PRODUCER)
    try:
        state = TransactionState(status)
    except ValueError as error:
        raise InvalidRequestError(f"a transaction cannot be in state {status}") from error
    partitions = frozenset(_read_partitions(reader, flexible=flexible))
    updated_ms, start_ms = reader.numbers(_TIMES)
    tags = _read_tags(reader) if flexible else {}
    return Transaction(
        transactional_id,
        producer_id,
        epoch,
        timeout_ms,
        updated_ms,
        state,
        partitions,
        start_ms,
        previous_producer_id=_tag(tags, _PREVIOUS_ID, _INT64, NO_PRODUCER_ID),
        next_producer_id=_tag(tags, _NEXT_ID, _INT64, NO_PRODUCER_ID),
        version=_tag(tags, _CLIENT_VERSION, _INT16, 0),
    )


def _read_partitions(reader: WireReader, *, flexible: bool) -> Iterator[TopicPartition]:
    for _ in range(_read_count(reader, flexible=flexible)):
        topic = decode_utf8(reader.take(reader.uvarint() - 1 if flexible else reader.integer("int16")))
        for _ in range(_read_count(reader, flexible=flexible)):
            yield TopicPartition(topic, reader.integer("int32"))
        if flexible:
            reader.skip_tags()


def _read_count(reader: WireReader, *, flexible: bool) -> int:
    count = reader.uvarint() - 1 if flexible else reader.integer("int32")
    if count > reader.left:
        raise InvalidRequestError(f"{count} elements in {reader.left} bytes")
    return max(count, 0)


def _read_tags(reader: WireReader) -> dict[int, bytes]:
    return {reader.uvarint(): reader.take(reader.uvarint()) for _ in range(reader.tags())}


def _tag(tags: dict[int, bytes], tag: int, form: Struct, default: int) -> int:
    data = tags.get(tag)
    if data is None:
        return default
    if len(data) != form.size:
        raise InvalidRequestError(f"tagged field {tag} has {len(data)} bytes, not {form.size}")
    return int(form.unpack(data)[0])
