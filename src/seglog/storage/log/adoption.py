"""Staged files into a log, and again after a crash in the middle of it. Only the disk can refuse here.

Items follow each other, each on the disk before the next one's file gets its name: what a crash leaves is a log that
ends in or after some item. Items that are there are checked and kept, the rest is added.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterator

from seglog.core.errors import InvalidLogDirError
from seglog.core.fs import File
from seglog.records.batch import BATCH_OVERHEAD, BatchHeader, read_header
from seglog.storage.formats.adopt_manifest import AdoptMode, PartitionPlan, PlacedItem
from seglog.storage.formats.paths import ADOPT_MANIFEST
from seglog.storage.log.log import Log
from seglog.storage.log.producers import Origin
from seglog.storage.log.rebase import runs
from seglog.storage.log.segments import segment_at


def carry_out(log: Log, log_dir: str, plan: PartitionPlan) -> None:
    """Bring the log to the end of the plan, and to the disk. Called with the log's lock held.

    `InvalidLogDirError` where the log has other records at the plan's offsets. Readers go on undisturbed.
    """
    for placed in plan.placed():
        if log.log_start_offset > placed.base or log.log_end_offset < plan.base:
            raise _foreign(log, log_dir, plan, placed.base)
        if placed.item.mode is AdoptMode.APPEND:
            _append(log, log_dir, plan, placed)
        elif log.log_end_offset == placed.base:
            _become_segment(log, log_dir, plan, placed)
        elif log.log_end_offset < placed.end or not _is_segment(log, log_dir, placed):
            raise _foreign(log, log_dir, plan, placed.base)
    log.flush()
    if log.active.size * 2 >= log.config.segment_bytes and log.log_end_offset == plan.end:
        log.roll()  # so that no later start has to check so much
        log.fs.fsync_dir(log.path)


def _foreign(log: Log, log_dir: str, plan: PartitionPlan, offset: int) -> InvalidLogDirError:
    manifest = os.path.join(log_dir, ADOPT_MANIFEST)
    return InvalidLogDirError(
        f"{manifest}: a job was being adopted into {plan.topic_partition} from offset {plan.base} to {plan.end}, and "
        f"the log, from {log.log_start_offset} to {log.log_end_offset}, does not contain its records at {offset}: "
        "another program has written to it since. Nothing is lost: records that are not in the log are in "
        f"{os.path.dirname(plan.items[0].file)} and beside it. To give up the rest of the job, remove {manifest}"
    )


# Appended


def _append(log: Log, log_dir: str, plan: PartitionPlan, placed: PlacedItem) -> None:
    """As a replica appends: offsets and epochs are in place, and no configuration can refuse them any more."""
    path = os.path.join(log_dir, placed.item.file)
    file = log.fs.open(path, write=False)
    try:
        position = _agree(log, log_dir, plan, placed, file)
        start, most = max(log.log_end_offset, placed.base), log.config.segment_bytes
        for run in runs(file, start, plan.epoch, most=most, position=position):
            log.append(run.data, leader_epoch=plan.epoch, origin=Origin.REPLICATION)
    finally:
        file.close()
    if log.log_end_offset < placed.end:
        raise _foreign(log, log_dir, plan, log.log_end_offset)


def _agree(log: Log, log_dir: str, plan: PartitionPlan, placed: PlacedItem, file: File) -> int:
    """How many bytes of the staged ``file`` are in the log already, being the same batches at the same offsets."""
    position = 0
    for header in _headers(log, placed.base, placed.end):
        staged = file.pread(BATCH_OVERHEAD, position)
        if len(staged) < BATCH_OVERHEAD:
            raise _foreign(log, log_dir, plan, header.base_offset)
        expected = read_header(staged)
        if (header.crc, header.length, header.leader_epoch) != (expected.crc, expected.length, plan.epoch):
            raise _foreign(log, log_dir, plan, header.base_offset)
        position += header.size
    return position


def _headers(log: Log, start: int, end: int) -> Iterator[BatchHeader]:
    """The log's batches from offset ``start`` on, up to ``end``."""
    segments = log.segments
    for segment in segments[max(segment_at(segments, start), 0) :]:
        found = segment.locate(start)
        if found is None:
            continue
        for header, _, _ in segment.headers(found.position):
            if header.base_offset >= end:
                return
            yield header


# Segments


def _is_segment(log: Log, log_dir: str, placed: PlacedItem) -> bool:
    """Whether the item has become its segment: the file has its new name, and only that."""
    at = segment_at(log.segments, placed.base)
    segment = log.segments[at]
    begins_there = segment.base_offset == placed.base and segment.size >= placed.item.size
    return begins_there and not log.fs.exists(os.path.join(log_dir, placed.item.file))


def _become_segment(log: Log, log_dir: str, plan: PartitionPlan, placed: PlacedItem) -> None:
    """Give a staged segment the place of the active one, which a roll has just made and which is empty."""
    log.flush(placed.base)  # a segment after a torn one would be cut off with it
    log.roll()
    log.take_segment(os.path.join(log_dir, placed.item.file), placed.end, leader_epoch=plan.epoch)
    log.fs.fsync_dir(log.path)
