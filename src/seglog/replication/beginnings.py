"""A leader's log that begins inside of a batch, as DeleteRecords may leave it, and a follower's that has nothing."""

from __future__ import annotations

from seglog.core.types import Buffer
from seglog.records import view
from seglog.records.batch import entries
from seglog.replication.replica import Replica, ReplicaAnswer, ReplicaFetch


def begin_at_batch(replica: Replica, asked: ReplicaFetch, answer: ReplicaAnswer, records: Buffer) -> bool:
    """Take ``records`` that begin below the end of an empty log, from the beginning of their first batch on; False if
    that is not how it is (``Partition.appendRecordsToFollowerOrFutureReplica``).

    A log that ends where the leader's begins, or before, has nothing that the leader has, either: it may be another
    history, of whose epochs the leader knows nothing any more. Kafka's follower fails there.

    The log's start is the leader's again once the batch is committed.
    """
    log = replica.log
    end, entry = log.log_end_offset, next(entries(records), None)
    has_nothing = log.log_start_offset == end or end <= answer.log_start_offset
    if entry is None or not has_nothing or asked.offset != end:
        return False
    header = view.describe(records, entry)
    if not header.base_offset < end <= header.last_offset:
        return False
    replica.directory.truncate_fully_and_start_at(*replica.topic_partition, header.base_offset)
    replica.take(asked._replace(offset=header.base_offset), answer, records)
    return True
