"""Fetches the ranges of a task in Spark's worker and decodes them to Arrow with the compiled loops.

Offsets define what a task reads. After a failure the fetcher continues after the last records that it handed over, so
no record is returned twice. Records that no longer exist raise a `DataLossError`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from seglog.client.cluster_connections import ClusterConnections
from seglog.client.range_fetcher import AbortedProducer, FetchedRecords, FetchTarget, RangeFetcher
from seglog.core.errors import CorruptBatchError, CorruptError, DataLossError
from seglog.core.types import MAX_INT64
from seglog.records.batch import CONTROL_BIT
from seglog.records.batch_kernels import Stop
from seglog.records.batch_tables import walk_batches
from seglog.records.columns import SourcePartition
from seglog.sources.brokers.planning import FetchRange
from seglog.sources.offsets import DATA_LOSS_HINT
from seglog.sources.options.read_options import ReadOptions
from seglog.sources.output_batches import output_batches, selection_of
from seglog.storage.log.transaction_index import AbortedTxn
from seglog.storage.offline.chunk_decoding import BatchExclusion, Chunk, OnDamage, decode_chunks, last_offsets

_log: Final = logging.getLogger("seglog.spark")


def read_ranges(
    cluster: ClusterConnections, ranges: Sequence[FetchRange], schema: pa.Schema, options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    """The records of ``ranges`` as batches of exactly ``schema``, which has some of our columns. Each partition's
    records are in order; several partitions of a task alternate.

    Damage raises a `CorruptError` with partition, broker and offset, or is skipped and logged with ``mode=permissive``.
    Missing records raise `DataLossError`, or are logged with ``failOnDataLoss=false``. A leader that is away for
    ``kafkaConsumer.pollTimeoutMs`` raises `RequestFailedError`.
    """
    targets = fetch_targets(ranges)
    selection = selection_of(options, schema.names)
    fetcher = fetcher_of(cluster, targets, options)
    for fetched in fetcher:
        target = fetched.target
        where = f"{target.topic_partition} at broker {fetched.broker}"
        chunks = list(_chunks(fetched, where))
        upto = max((int(last_offsets(chunk.table)[-1]) + 1 for chunk in chunks), default=fetched.position)
        fetcher.advance(fetched, upto)  # the next request is under way while these records are decoded
        leave_out = BatchExclusion(options.include_control, _aborted(fetched.aborted, chunks))
        wanted = selection._replace(low=fetched.position, high=target.end)
        origin = SourcePartition(*target.topic_partition)
        on_damage = _skip(where) if options.permissive else None
        try:
            for decoded in decode_chunks(chunks, wanted, origin, leave_out=leave_out, on_damage=on_damage):
                if decoded.rows is not None:
                    yield from output_batches(decoded.rows, schema, options)
        except CorruptError as error:
            raise error.at(file=where) from None
        del fetched, chunks  # they may be large, and the next answer comes before the loop assigns them again


def fetch_targets(ranges: Iterable[FetchRange]) -> list[FetchTarget]:
    """A target for each partition. A task has neighbouring ranges of a partition if many small ones share it."""
    found: list[FetchTarget] = []
    for one in ranges:
        (start, end), size = one.offsets, one.size
        last = found[-1] if found else None
        if last is not None and (last.topic_partition, last.end) == (one.topic_partition, start):
            found[-1] = last._replace(end=end, size=last.size + size)
        else:
            found.append(FetchTarget(one.topic_partition, one.topic_id, start, end, size, one.leader))
    return found


def fetcher_of(cluster: ClusterConnections, targets: Sequence[FetchTarget], options: ReadOptions) -> RangeFetcher:
    """Fetches ``targets`` as the options say."""
    return RangeFetcher(
        cluster,
        targets,
        read_committed=options.read_committed,
        patience=options.poll_timeout_ms / 1000,
        lose=_lose if options.fail_on_data_loss else _warn_of_loss,
    )


def _chunks(fetched: FetchedRecords, where: str) -> Iterator[Chunk]:
    """The whole batches of an answer. The last one may be cut off; anything else that is not a batch is damage."""
    stop = Stop.FULL
    for walked in walk_batches(fetched.records):
        stop = walked.stop
        if len(walked.table):
            yield Chunk(fetched.records, 0, walked.table)
    if stop in (Stop.MAGIC, Stop.SIZE):
        raise CorruptBatchError("the broker's answer is not a record batch", offset=fetched.position, file=where)


def _aborted(producers: Sequence[AbortedProducer], chunks: Sequence[Chunk]) -> tuple[AbortedTxn, ...]:
    """The aborted transactions of an answer: each ends with the first marker of its producer after its beginning."""
    if not producers or not chunks:
        return ()
    markers = np.concatenate([chunk.table[chunk.table["attributes"] & CONTROL_BIT != 0] for chunk in chunks])
    found = []
    for producer in producers:
        own = markers[markers["producer_id"] == producer.producer_id]["base_offset"]
        behind = own[own > producer.first_offset]
        end = int(behind.min()) if len(behind) else MAX_INT64
        found.append(AbortedTxn(producer.producer_id, producer.first_offset, end, -1))
    return tuple(found)


def _skip(where: str) -> OnDamage:
    def skip(error: CorruptError, size: int) -> None:
        _log.warning("seglog: mode=permissive skipped %d bytes of %s: %s", size, where, error)

    return skip


def _lose(what: str) -> None:
    raise DataLossError(f"{what}; {DATA_LOSS_HINT}")


def _warn_of_loss(what: str) -> None:
    _log.warning("seglog: data was lost: %s", what)
