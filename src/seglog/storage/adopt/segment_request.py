"""The requests to a broker that has a log directory open, beside `seglog.storage.directory.owner_socket`.

=========== ============================================= ======================================================
request     fields                                        answer
=========== ============================================= ======================================================
status      none                                          broker: ``node_id`` and ``bootstrap``
note        application, which writes through the broker  last: its last version in the ledger, -1 if none
adopt       those of `SegmentRequest`                     nothing: its batches are in the leader's log
=========== ============================================= ======================================================

An answer is ``{"ok": …}`` or ``{"error": [class, text], "code": …}`` with Kafka's error code. All can be repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from seglog.core.errors import AdoptError
from seglog.core.types import ProducerIdAndEpoch, TopicPartition


class SegmentRequest(NamedTuple):
    """Take over a staged and stamped segment (`seglog.storage.log.finished_segment`).

    ``file`` is relative to the log directory. ``producer_id`` and ``producer_epoch`` are those of its batches, whose
    sequences end with ``last_sequence``. ``implicit``: the leader adds the partition to the transaction (KIP-890).
    """

    topic: str
    partition: int
    file: str
    records: int
    keyed: bool
    transactional_id: str
    producer_id: int
    producer_epoch: int
    last_sequence: int
    implicit: bool

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def producer(self) -> ProducerIdAndEpoch:
        return ProducerIdAndEpoch(self.producer_id, self.producer_epoch)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """`AdoptError` for any other object."""
        kinds = (str, int, str, int, bool, str, int, int, int, bool)
        try:
            found = cls(**fields)
        except TypeError as error:
            raise AdoptError(f"not a request for a segment: {error}") from error
        if [type(one) for one in found] != list(kinds):
            raise AdoptError(f"not a request for a segment: {found}")
        return found
