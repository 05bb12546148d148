"""Builds the files that are derived from a log: indexes, abort indexes, producer snapshots, epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from seglog.core.errors import AppendError, CorruptSnapshotError
from seglog.core.fs import File
from seglog.core.types import MAX_INT64, NO_EPOCH, NO_TIMESTAMP
from seglog.records import any_magic
from seglog.storage.log.epochs import LeaderEpochs
from seglog.storage.log.index import OFFSET_ENTRY, TIME_ENTRY
from seglog.storage.log.producers import Producers, decode_snapshot, encode_snapshot
from seglog.storage.log.transaction_index import AbortedTxn, encode_aborted
from seglog.storage.offline.batch_reading import read_chunks
from seglog.storage.offline.verify.producers import Replay, SnapshotFile
from seglog.storage.offline.verify.summary import LEGACY, EpochRun

_INDEX_BYTES: Final = 10_485_760
"""``segment.index.bytes``: the limit of an index."""


class Indexes(NamedTuple):
    offset_index: bytes
    timeindex: bytes


def build_indexes(file: File, base_offset: int, interval: int) -> Indexes:
    """Build both indexes of a sound log, by the rule of Kafka's recovery (``LogSegment.recover``)."""
    index, times = bytearray(), bytearray()
    peak, peak_offset, last_time, last_entry = NO_TIMESTAMP, base_offset, NO_TIMESTAMP, 0

    def add_time() -> None:
        nonlocal last_time
        if peak > last_time:
            times.extend(TIME_ENTRY.pack(peak, peak_offset - base_offset))
            last_time = peak

    for chunk in read_chunks(file):
        for entry in chunk.entries:
            header = any_magic.describe(chunk.data, entry, deep=False)
            if header.max_timestamp > peak:
                peak, peak_offset = header.max_timestamp, header.last_offset
            position = chunk.position + entry.position
            if position - last_entry > interval and len(times) + 2 * TIME_ENTRY.size <= _INDEX_BYTES:
                index += OFFSET_ENTRY.pack(header.last_offset - base_offset, position)
                add_time()
                last_entry = position
    add_time()
    return Indexes(bytes(index), bytes(times))


def build_epochs(known: LeaderEpochs | None, runs: Sequence[EpochRun]) -> LeaderEpochs:
    """The epochs of the batches, and the ``known`` epochs behind them that have no batch."""
    made = LeaderEpochs()
    for run in runs:
        if run.epoch == LEGACY:
            made.clear()  # as Kafka does when a topic goes back to an old message format
        elif run.epoch > made.latest and run.epoch != NO_EPOCH:
            made.assign(run.epoch, run.first_offset)
    if known is not None:
        last = runs[-1].last_offset if runs else -1
        for epoch, start in known.entries:
            if epoch > made.latest and start > last:
                made.assign(epoch, start)
    return made


class ProducerFiles(NamedTuple):
    """Snapshots by offset, and abort indexes by base offset (empty: no file); producers of open transactions."""

    snapshots: Mapping[int, bytes]
    txn_indexes: Mapping[int, bytes]
    ongoing: Mapping[int, int]


def build_producer_files(replay: Replay, existing: Sequence[SnapshotFile], offsets: Sequence[int]) -> ProducerFiles:
    """Replay the log, and build snapshots for ``offsets``.

    The replay begins with the newest readable snapshot at or below the log's start, otherwise without producers.
    """
    producers = Producers()
    for snapshot in existing:
        if snapshot.offset <= replay.start:
            try:
                producers = decode_snapshot(snapshot.data, snapshot.file)
            except CorruptSnapshotError:
                continue
    waiting = sorted(offset for offset in offsets if offset > replay.start)
    snapshots: dict[int, bytes] = {}
    txn_indexes: dict[int, bytes] = {}
    for file, steps in replay.segments:
        aborted = bytearray()
        for step in steps:
            while waiting and waiting[0] <= step.header.base_offset:
                snapshots[waiting.pop(0)] = encode_snapshot(producers)
            try:
                completed = producers.replay(step.header, step.control)
            except AppendError:  # batches before it are lost
                continue
            if completed is None or completed.first_offset not in producers.ongoing:
                continue
            if completed.is_aborted:
                stable = producers.last_stable_offset(completed)
                aborted += encode_aborted(
                    AbortedTxn(completed.producer_id, completed.first_offset, completed.last_offset, stable)
                )
            producers.complete(completed)
            producers.on_high_watermark(MAX_INT64)
        txn_indexes[file.base_offset] = bytes(aborted)
    for offset in waiting:
        snapshots[offset] = encode_snapshot(producers)
    return ProducerFiles(snapshots, txn_indexes, dict(producers.ongoing))
