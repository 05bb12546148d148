"""The contents of logs, in the forms that the checks of simulated worlds compare."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final

from seglog.core.errors import CorruptBatchError
from seglog.records.batch import check_crc, entries, read_header
from seglog.records.record import decode_records
from seglog.storage.log.log import Log
from seglog.storage.log.reads import UpTo

TOPIC: Final = "t"
_LOGS: Final = r"/[^/]+/{}-{}(\.[0-9a-f]+-stray)?/(\.seglog/unclean-\d+/)?\d+\.log"
_REMOVED: Final = re.compile(r"/[^/]+/(.+)-(\d+)\.[0-9a-f]+-delete/\d+\.log")


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
        before = offset
        for header, records in log.read(offset, 1 << 20, up_to=UpTo.LOG_END).decoded():
            found.extend((one.offset, int(one.value or b"")) for one in records if start <= one.offset < end)
            offset = header.last_offset + 1
        if offset == before:
            break
    return found


def values_kept(files: Mapping[str, bytes], topic: str, number: int) -> set[int]:
    """All values of a partition in the files of log directories: of its replica, of a stray, and saved before a cut."""
    is_log = re.compile(_LOGS.format(re.escape(topic), number)).fullmatch
    return {value for path, data in files.items() if is_log(path) for value in values_of(data)}


def number_of(path: str, topic: str) -> int | None:
    """The partition whose log file that is, in a directory that is being deleted; None if it is of no other topic."""
    match = _REMOVED.fullmatch(path)
    return int(match[2]) if match is not None and match[1] == topic else None


def values_of(data: bytes) -> Iterator[int]:
    """The values in a log file, up to where a power cut has torn it."""
    with suppress(CorruptBatchError):
        for entry in entries(data):
            header = read_header(data, entry.position)
            check_crc(data, header, entry.position)
            for record in () if header.is_control else decode_records(data, header, entry.position):
                yield int(record.value or b"")
