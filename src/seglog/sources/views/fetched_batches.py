"""Makes the rows of the view ``batches`` from the batches that brokers hand out."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from seglog.client.cluster_connections import ClusterConnections
from seglog.core.errors import CorruptBatchError
from seglog.records.batch_kernels import Stop
from seglog.records.batch_tables import walk_batches
from seglog.sources.brokers.task_reader import fetch_targets, fetcher_of
from seglog.sources.options.read_options import ReadOptions
from seglog.sources.views.batch_rows import batch_columns, checks_crcs, reasons_of
from seglog.sources.views.rows import FetchedBatchTask
from seglog.storage.offline.chunk_decoding import last_offsets


def fetched_batch_rows(
    cluster: ClusterConnections, task: FetchedBatchTask, arrow: pa.Schema, options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    """The batches of ``task`` in order. They have no file and no position."""
    check_crc = checks_crcs(arrow.names)
    (target,) = fetch_targets([task.range])
    low, high = task.range.offsets
    fetcher = fetcher_of(cluster, [target], options)
    for fetched in fetcher:
        upto, stop = fetched.position, Stop.FULL
        found = []
        for walked in walk_batches(fetched.records, check_crc=check_crc):
            stop = walked.stop
            if not len(walked.table):
                continue
            ends = last_offsets(walked.table)
            upto = int(ends[-1]) + 1
            begins = walked.table["base_offset"]
            wanted = (ends >= fetched.position) & (begins < high) & (task.first | (begins >= low))
            found.append(walked.table[wanted])
        if stop in (Stop.MAGIC, Stop.SIZE):
            where = f"{target.topic_partition} at broker {fetched.broker}"
            raise CorruptBatchError("the broker's answer is not a record batch", offset=upto, file=where)
        fetcher.advance(fetched, upto)
        if found and len(table := np.concatenate(found)):
            yield batch_columns(arrow, target.topic_partition, None, table, reasons_of(fetched.records, table))
