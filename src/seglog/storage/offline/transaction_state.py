"""The state that ``read_committed`` needs: aborted transactions, and the start of the first open one.

Unlike `seglog.storage.log.producer_snapshots` this reads directories that may be in use, and removes nothing.
"""

from __future__ import annotations

import os.path
from typing import NamedTuple

from seglog.core.errors import CorruptSnapshotError
from seglog.core.fs import Fs
from seglog.core.types import MAX_INT64
from seglog.records.batch import BATCH_OVERHEAD, read_header
from seglog.storage.formats.batch_walk import HEADERS, walk
from seglog.storage.formats.paths import SNAPSHOT, TXN_INDEX, list_segments, parse_file_name
from seglog.storage.log.producers import decode_snapshot
from seglog.storage.log.transaction_index import AbortedTxn, decode_aborted


class ReadCommittedState(NamedTuple):
    """The aborted transactions of a partition, and its last stable offset, None if it is the log's end."""

    aborted: tuple[AbortedTxn, ...]
    last_stable_offset: int | None


class OpenTransaction(NamedTuple):
    """A transaction without a marker. ``last_timestamp`` is that of its producer's newest batch, in ms."""

    producer_id: int
    producer_epoch: int
    first_offset: int
    last_timestamp: int


def read_transactions(fs: Fs, partition: str, *, below: int = MAX_INT64) -> ReadCommittedState:
    """Read all ``.txnindex`` files, the newest readable snapshot, and the headers of the batches behind that one.

    A transaction is open unless its marker lies below ``below``, a high watermark.
    """
    opened = open_transactions(fs, partition, below=below)
    return ReadCommittedState(_aborted(fs, partition), opened[0].first_offset if opened else None)


def _files(fs: Fs, partition: str, kind: str) -> list[tuple[int, str]]:
    """The files of one kind: the offsets in their names, and their paths, sorted."""
    found = []
    for name in fs.listdir(partition):
        file = parse_file_name(name)
        if file is not None and file.kind == kind and not file.state:
            found.append((file.base_offset, os.path.join(partition, name)))
    return sorted(found)


def _aborted(fs: Fs, partition: str) -> tuple[AbortedTxn, ...]:
    found: list[AbortedTxn] = []
    for base_offset, path in _files(fs, partition, TXN_INDEX):
        found += decode_aborted(fs.read(path), path, base_offset=base_offset)
    return tuple(found)


def open_transactions(fs: Fs, partition: str, *, below: int = MAX_INT64) -> list[OpenTransaction]:
    """The open transactions by first offset. The first one begins at the last stable offset."""
    start, opened = 0, dict[int, OpenTransaction]()
    for offset, path in reversed(_files(fs, partition, SNAPSHOT)):
        if offset > below:
            continue
        try:
            entries = decode_snapshot(fs.read(path), path).entries
        except CorruptSnapshotError:
            continue
        start = offset
        for producer_id, entry in entries.items():
            if entry.current_txn_first_offset is not None:
                first = entry.current_txn_first_offset
                opened[producer_id] = OpenTransaction(producer_id, entry.epoch, first, entry.last_timestamp)
        break
    segments = list_segments(fs, partition)
    for segment, following in zip(segments, [*segments[1:], None], strict=False):
        if segment.base_offset < below and (following is None or following.base_offset > start):
            _note_transactions(fs, segment.log, start, below, opened)
    return sorted(opened.values(), key=lambda one: one.first_offset)


def _note_transactions(fs: Fs, path: str, start: int, below: int, opened: dict[int, OpenTransaction]) -> None:
    """Replay the batches of these offsets into ``opened``, by producer id. Only headers are read."""
    for entry, _, data in walk(fs.open(path, write=False), window=HEADERS, whole=False, lax=True):
        if entry.magic < 2 or entry.size < BATCH_OVERHEAD:
            continue
        header = read_header(data, entry.position)
        if not header.is_transactional or not start <= header.base_offset < below:
            continue
        if header.is_control:
            opened.pop(header.producer_id, None)
            continue
        known = opened.get(header.producer_id)
        first = header.base_offset if known is None else known.first_offset
        opened[header.producer_id] = OpenTransaction(
            header.producer_id, header.producer_epoch, first, header.max_timestamp
        )
