"""What stands in logs, as the checks of simulated worlds compare it."""

from __future__ import annotations

from seglog.records.record import Record
from seglog.storage.log.log import Log
from seglog.storage.log.reads import UpTo


def bytes_of(log: Log, start: int, end: int) -> bytes:
    """The batches from the one that holds ``start`` up to ``end``, where one ends."""
    parts = []
    segments = log.segments
    for index, segment in enumerate(segments):
        following = segments[index + 1].base_offset if index + 1 < len(segments) else log.log_end_offset
        if segment.base_offset < end and following > start:
            found = segment.locate(start) if start > segment.base_offset else None
            first = 0 if found is None else found.position
            found = segment.locate(end) if end < following else None
            last = segment.size if found is None else found.position
            parts.append(segment.log.pread(last - first, first))
    return b"".join(parts)


def records_of(log: Log, start: int, end: int) -> list[tuple[int, int]]:
    """Offsets and values below ``end``."""
    found: list[tuple[int, int]] = []
    offset = start
    while offset < end:
        records: list[Record] = list(log.read(offset, 1 << 20, up_to=UpTo.LOG_END).records())
        if not records:
            break
        found.extend((record.offset, int(record.value or b"")) for record in records if record.offset < end)
        offset = records[-1].offset + 1
    return found
