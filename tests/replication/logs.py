"""Batches for logs, and what a log has."""

from __future__ import annotations

from seglog.records.record import NewRecord, encode_batch
from seglog.replication.replica import Replica


def batch(size: int = 100, records: int = 1) -> bytes:
    return bytes(encode_batch([NewRecord(value=b"x" * (size // records)) for _ in range(records)]))


def content(replica: Replica) -> bytes:
    return b"".join(segment.log.pread(segment.size, 0) for segment in replica.log.segments)
