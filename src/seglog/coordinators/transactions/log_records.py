"""Records of ``__transaction_state``: typed values, read and written by `seglog.records.coordinator_records`.

The last state of a transactional id counts; a record without a value deletes it. Kafka 4.4 writes version 1 of the
value in a cluster of transaction version 2, else version 0, which lacks the previous and next producer ids and the
client's version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from seglog.coordinators.transactions.transaction import EPOCH_BUMPS_FROM, Transaction, TransactionState
from seglog.core.errors import CorruptRecordError
from seglog.core.types import Buffer, TopicPartition
from seglog.records.coordinator_records import TRANSACTIONS, UnknownTypeError, as_seglog_error
from seglog.records.kafka_messages import MessageError

_TYPE: Final = 0
_STATES: Final = {int(state): state for state in TransactionState}


def encode_key(transactional_id: str) -> bytes:
    """
    >>> encode_key("a").hex()
    '0000000161'
    """
    return TRANSACTIONS.write_key(_TYPE, (transactional_id,))


def encode_value(transaction: Transaction, version: int) -> bytes:
    """``version`` is the cluster's transaction version: from 2 on the record is flexible."""
    return TRANSACTIONS.write_value(_TYPE, _to_fields(transaction), int(version >= EPOCH_BUMPS_FROM))


def decode(key: Buffer, value: Buffer | None) -> tuple[str, Transaction | None] | None:
    """The transactional id of a record and its state, None where that is deleted; None for a record of another type.

    Raises `CorruptRecordError`, and `UnsupportedFormatError` for a value of a version that Kafka 4.4 does not know.
    Bytes after the last field are ignored, as Kafka does.
    """
    try:
        name: str = TRANSACTIONS.read_key(key).fields["transactionalId"]
        return name, None if value is None else _from_fields(name, TRANSACTIONS.read_value(_TYPE, value).fields)
    except UnknownTypeError:
        return None
    except MessageError as error:
        raise as_seglog_error(error, "a transaction") from error


def _to_fields(transaction: Transaction) -> Mapping[str, Any]:
    return {
        "producerId": transaction.producer_id,
        "previousProducerId": transaction.previous_producer_id,
        "nextProducerId": transaction.next_producer_id,
        "producerEpoch": transaction.epoch,
        "transactionTimeoutMs": transaction.timeout_ms,
        "transactionStatus": transaction.state,
        "transactionPartitions": _topics(transaction),
        "transactionLastUpdateTimestampMs": transaction.updated_ms,
        "transactionStartTimestampMs": transaction.start_ms,
        "clientTransactionVersion": transaction.version,
    }


def _topics(transaction: Transaction) -> list[Mapping[str, Any]] | None:
    if transaction.state is TransactionState.EMPTY:
        return None
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(transaction.partitions):
        topics.setdefault(topic, []).append(number)
    return [{"topic": topic, "partitionIds": numbers} for topic, numbers in topics.items()]


def _from_fields(transactional_id: str, fields: Mapping[str, Any]) -> Transaction:
    state = _STATES.get(fields["transactionStatus"])
    if state is None:
        raise CorruptRecordError(f"a transaction cannot be in state {fields['transactionStatus']}")
    return Transaction(
        transactional_id,
        fields["producerId"],
        fields["producerEpoch"],
        fields["transactionTimeoutMs"],
        fields["transactionLastUpdateTimestampMs"],
        state,
        frozenset(
            [
                TopicPartition(topic["topic"], number)
                for topic in fields["transactionPartitions"] or ()
                for number in topic["partitionIds"]
            ]
        ),
        fields["transactionStartTimestampMs"],
        previous_producer_id=fields["previousProducerId"],
        next_producer_id=fields["nextProducerId"],
        version=fields["clientTransactionVersion"],
    )
