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
from seglog.storage.formats.paths import SNAPSHOT, TXN_INDEX, list_segments, parse_file_name
from seglog.storage.log.producers import decode_snapshot
from seglog.storage.log.transaction_index import AbortedTxn, decode_aborted
from seglog.storage.offline.batch_reading import read_chunks


class ReadCommittedState(NamedTuple):
    """The aborted transactions of a partition, and its last stable offset, None if it is the log's end."""

    aborted: tuple[AbortedTxn, ...]
    last_stable_offset: int | None


def read_transactions(fs: Fs, partition: str, *, below: int = MAX_INT64) -> ReadCommittedState:
    """Read all ``.txnindex`` files, the newest readable snapshot, and the headers of the batches behind that one.

    A transaction is open unless its marker lies below ``below``, a high watermark.
    """
    return ReadCommittedState(_aborted(fs, partition), _last_stable_offset(fs, partition, below))


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


def _last_stable_offset(fs: Fs, partition: str, below: int) -> int | None:
    start, opened = 0, dict[int, int]()
    for offset, path in reversed(_files(fs, partition, SNAPSHOT)):
        if offset > below:
            continue
        try:
            entries = decode_snapshot(fs.read(path), path).entries
        except CorruptSnapshotError:
            continue
        start = offset
        starts = {producer_id: entry.current_txn_first_offset for producer_id, entry in entries.items()}
        opened = {producer_id: first for producer_id, first in starts.items() if first is not None}
        break
    segments = list_segments(fs, partition)
    for segment, following in zip(segments, [*segments[1:], None], strict=True):
        if segment.base_offset < below and (following is None or following.base_offset > start):
            _note_transactions(fs, segment.log, start, below, opened)
    return min(opened.values(), default=None)


def _note_transactions(fs: Fs, path: str, start: int, below: int, opened: dict[int, int]) -> None:
    """Replay the batches of these offsets into ``opened``: open transactions, producer id to first offset."""
    for chunk in read_chunks(fs.open(path, write=False)):
        for entry in chunk.entries:
            if entry.magic < 2 or entry.size < BATCH_OVERHEAD:
                continue
            header = read_header(chunk.data, entry.position)
            if not header.is_transactional or not start <= header.base_offset < below:
                continue
            if header.is_control:
                opened.pop(header.producer_id, None)
            else:
                opened.setdefault(header.producer_id, header.base_offset)
