"""Replays a partition of ``__consumer_offsets`` in short steps, so that the event loop serves other tasks in
between."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from seglog.coordinators.coordinator_shard import CoordinatorShard
from seglog.coordinators.group_records import decode
from seglog.core.errors import CorruptRecordError, UnsupportedFormatError
from seglog.records import any_magic
from seglog.records.batch import entries
from seglog.records.record import ControlType, Record, parse_control
from seglog.replication.replica import Replica
from seglog.storage.log.reads import UpTo

_log: Final = logging.getLogger("seglog.coordinators")
_READ_BYTES: Final = 1 << 20
_RECORDS_AT_ONCE: Final = 256
"""About two milliseconds, in which no client is answered."""


def load(shard: CoordinatorShard, partition: Replica) -> Iterator[None]:
    """Replay everything up to the current end of the log, one short step per iteration.

    The end is the log's, not the high watermark, which a new leader does not know at once (``CoordinatorLoaderImpl``).
    """
    log = partition.log
    offset, end = log.log_start_offset, log.log_end_offset
    while offset < end:
        fetched = log.read(offset, _READ_BYTES, up_to=UpTo.LOG_END)
        if not fetched.size:
            if fetched.next_offset <= offset:
                return
            offset = fetched.next_offset
            continue
        data = memoryview(fetched.read())
        for entry in entries(data):
            header = any_magic.describe(data, entry)
            offset = header.last_offset + 1
            records = [record for record in any_magic.decode(data, entry) if record.offset >= log.log_start_offset]
            if header.is_control:
                _end_transactions(shard, records, header.producer_id)
                continue
            producer_id = header.producer_id if header.is_transactional else -1
            for start in range(0, len(records), _RECORDS_AT_ONCE):
                for record in records[start : start + _RECORDS_AT_ONCE]:
                    _replay(shard, partition, record, producer_id)
                yield


def _end_transactions(shard: CoordinatorShard, records: list[Record], producer_id: int) -> None:
    for record in records:
        kind = parse_control(record).type
        if kind in (ControlType.COMMIT, ControlType.ABORT):
            shard.offsets.end_transaction(producer_id, commit=kind is ControlType.COMMIT)


def _replay(shard: CoordinatorShard, partition: Replica, record: Record, producer_id: int) -> None:
    """Replay one record. Skip it if it is damaged or of a newer Kafka; it stays in the log."""
    if record.key is None:
        return
    try:
        entry = decode(record.key, record.value)
    except (CorruptRecordError, UnsupportedFormatError) as error:
        _log.warning("offset %d of %s is skipped: %s", record.offset, partition.topic_partition, error)
        return
    if entry is not None:
        shard.replay(entry, record.offset, producer_id)
