"""Have every compiled loop compiled: `python -m seglog.worker warm`, once after an installation (half a minute)."""

from __future__ import annotations

import os.path
import tempfile
from dataclasses import replace

from seglog.core.clock import SystemClock
from seglog.core.extras import require
from seglog.core.fs import OsFs
from seglog.records.compression import Codec
from seglog.records.record import NewRecord, encode_batch
from seglog.storage.compaction.cleaner import clean
from seglog.storage.compaction.round import COMPILED, Round, SourceSegment
from seglog.storage.formats.paths import segment_paths


def warm() -> None:
    """Run each loop over a tiny log; what it compiles stays in numba's cache. Needs the extra ``fast``."""
    require("numba", "fast", purpose="compiling the loops")
    from seglog.records.batch_tables import check_compressed, walk_batches
    from seglog.records.column_decoding import Selection
    from seglog.records.column_encoding import encode_columns
    from seglog.records.key_bucket_kernels import warm_key_buckets
    from seglog.records.newest_kernels import warm_newest
    from seglog.records.partition_kernels import warm_partitioner
    from seglog.sources.scan import scan
    from seglog.storage.compaction.compiled_cleaner import CompiledMap
    from seglog.storage.offline.table_batches import FileRange, iter_table_batches
    from seglog.values.avro.decoder import warm_decoder

    fs = OsFs()
    with tempfile.TemporaryDirectory(prefix="seglog-warm-") as directory:
        partition = os.path.join(directory, "warm-0")
        fs.mkdir(partition)
        log = segment_paths(partition, 0).log
        records = [NewRecord(b"value", b"key", 1, (("name", b"value"),)), NewRecord(None, b"other", 2)]
        data = encode_batch(records) + encode_batch(records, base_offset=2, codec=Codec.LZ4)
        fs.write(log, data)
        for batch in scan(partition):
            encode_columns(batch.select(["key", "value", "headers"]))
        for _ in iter_table_batches(fs, FileRange(log), Selection(keys=(b"key",))):
            pass
        for walked in walk_batches(bytes(data), check_records=True):
            check_compressed(bytes(data), walked.table)
        round_ = Round(
            directory=partition,
            sources=(SourceSegment(0, 4, len(data), 0, 0, 0),),
            first_dirty=0,
            first_uncleanable=4,
            dirty_position=0,
            aborted=(),
            producers=(),
            now_ms=0,
            delete_retention_ms=0,
            segment_bytes=1 << 20,
            index_bytes=1 << 20,
            index_interval=0,
            slots=10_000,
            max_entries=9_000,
            max_bytes_per_second=float("inf"),
            engine=COMPILED,
        )
        for _ in clean(round_, fs, SystemClock()):
            pass
        _warm_parts(fs, replace(round_, first_dirty=2))
    warm_partitioner()
    warm_newest()
    warm_key_buckets()
    warm_decoder()
    offsets = CompiledMap(10_000, 9_000)
    offsets.put(b"key", 0)
    offsets.make_room(9_000)
    offsets.get(b"key")


def _warm_parts(fs: OsFs, round_: Round) -> None:
    from seglog.storage.compaction.parts import (
        KeyRows,
        LastOffsets,
        OpenTransactions,
        SourceStretch,
        Survivors,
        clean_part,
        map_keys,
        new_hash_key,
    )

    offsets, stays = LastOffsets(), Survivors(0, 4, 3)
    for item in map_keys(fs, round_, SourceStretch(round_.sources[0], 0, round_.sources[0].size), new_hash_key()):
        if isinstance(item, KeyRows):
            offsets.put(item.frozen())
            offsets.stay(item.frozen())
    stays.add(offsets.last().astype("<u4").tobytes())
    clean_part(fs, round_, round_.sources, stays, OpenTransactions(), round_.directory)
