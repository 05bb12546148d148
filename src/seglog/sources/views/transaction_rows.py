"""Decodes records of ``__transaction_state`` into rows, each with the state of a transactional id."""

from __future__ import annotations

from typing import Any

from seglog.coordinators.transactions.log_records import decode
from seglog.core.errors import CorruptRecordError, UnsupportedFormatError
from seglog.core.types import NO_PRODUCER_ID


def describe(key: bytes, value: bytes) -> dict[str, Any]:
    """The columns that come from a record's key and value."""
    try:
        found = decode(key, value)
    except (CorruptRecordError, UnsupportedFormatError) as error:
        return {"reason": str(error)}
    if found is None:
        return {"reason": "a record of another type"}
    name, transaction = found
    assert transaction is not None  # it has a value
    return {
        "transactionalId": name,
        "producerId": transaction.producer_id,
        "producerEpoch": transaction.epoch,
        "state": transaction.state.label,
        "timeoutMs": transaction.timeout_ms,
        "partitions": sorted(map(str, transaction.partitions)),
        "startTimestamp": transaction.start_ms,
        "updateTimestamp": transaction.updated_ms,
        "previousProducerId": _known(transaction.previous_producer_id),
        "nextProducerId": _known(transaction.next_producer_id),
        "transactionVersion": transaction.version,
    }


def _known(producer_id: int) -> int | None:
    return None if producer_id == NO_PRODUCER_ID else producer_id
