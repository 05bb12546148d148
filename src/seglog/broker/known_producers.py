"""The producer ids that a log directory knows, for a broker whose metadata store has not given out any: it opens a
directory of Kafka, whose ids are in Kafka's own metadata, or has lost its store.

A producer with the id of another one would be fenced by that one's epochs or, worse, have its first batches taken for
repetitions of the other's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from seglog.broker.apis.producers import BLOCK
from seglog.coordinators.transactions.log_records import decode
from seglog.core.errors import SeglogError
from seglog.core.topic_names import TRANSACTION_TOPIC
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.log.log import Log

_NONE: Final = -1


def first_free_block(directory: LogDir) -> int:
    """Where the block of ids begins that follows all known ones: clients may still hold ids of the last block. Reads
    ``__transaction_state``, for transactional ids that have not produced."""
    highest = _NONE
    for partition, log in directory.logs.items():
        highest = max(highest, max(log.producers.entries, default=_NONE))
        if partition.topic == TRANSACTION_TOPIC:
            highest = max(highest, max(_of_transactions(log), default=_NONE))
    return (highest // BLOCK + 1) * BLOCK


def _of_transactions(log: Log) -> Iterator[int]:
    for record in log.records():
        if record.key is None:
            continue
        with suppress(SeglogError):  # a record that the coordinator skips too
            decoded = decode(record.key, record.value)
            if decoded is not None and decoded[1] is not None:
                yield max(decoded[1].producer_id, decoded[1].next_producer_id)
