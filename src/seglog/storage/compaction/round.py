"""One round of compaction of one log as plain values: its work and its result."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Any, Final, NamedTuple

from seglog.core.types import MAX_INT32
from seglog.storage.log.transaction_index import AbortedTxn

COMPILED: Final = "compiled"
PLAIN: Final = "plain"


class SourceSegment(NamedTuple):
    """A segment that the round reads. Sizes in bytes; ``next_base_offset`` is that of the segment after it."""

    base_offset: int
    next_base_offset: int
    size: int
    offset_index_size: int
    time_index_size: int
    mtime_ms: int


class LastRecord(NamedTuple):
    """The last that the log has of an active producer; ``last_data_offset`` is -1 if its epoch wrote markers only."""

    producer_id: int
    last_data_offset: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The segments to clean, and how.

    ``sources`` are all inactive segments below ``first_uncleanable``, ascending; keys are taken from ``first_dirty``
    on, whose batch is found from byte ``dirty_position`` of its segment. ``aborted`` has every aborted transaction with
    records there, ``producers`` the active producers by id. ``engine`` is `COMPILED` or `PLAIN`.
    """

    directory: str
    sources: tuple[SourceSegment, ...]
    first_dirty: int
    first_uncleanable: int
    dirty_position: int
    aborted: tuple[AbortedTxn, ...]
    producers: tuple[LastRecord, ...]
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    index_bytes: int
    index_interval: int
    slots: int
    max_entries: int
    max_bytes_per_second: float
    engine: str

    @property
    def dirty_sources(self) -> tuple[SourceSegment, ...]:
        """The segments that hold offsets from ``first_dirty`` on."""
        return tuple(source for source in self.sources if source.next_base_offset > self.first_dirty)

    @property
    def legacy_delete_horizon_ms(self) -> int:
        """Segments of formats 0 and 1 that were changed later than this keep their tombstones."""
        clean = bisect_left(self.sources, self.first_dirty, key=attrgetter("base_offset"))
        return self.sources[clean - 1].mtime_ms - self.delete_retention_ms if clean else 0

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Round:
        fields: dict[str, Any] = json.loads(text)
        fields["sources"] = tuple(SourceSegment(*source) for source in fields["sources"])
        fields["aborted"] = tuple(AbortedTxn(*txn) for txn in fields["aborted"])
        fields["producers"] = tuple(LastRecord(*record) for record in fields["producers"])
        return cls(**fields)


class OffsetMapStats(NamedTuple):
    """The offset map is made: it knows of everything before ``end_offset``. ``seconds`` it took."""

    end_offset: int
    entries: int
    messages: int
    bytes: int
    seconds: float


class CleanedGroup(NamedTuple):
    """Segments ``bases`` are cleaned into ``.cleaned`` files under the first one's name, which are on the disk."""

    bases: tuple[int, ...]
    bytes_read: int
    bytes_written: int
    messages_read: int
    messages_written: int
    keyless: int


def group_sources(
    sources: Sequence[SourceSegment], *, segment_bytes: int, index_bytes: int, first_uncleanable: int
) -> list[tuple[SourceSegment, ...]]:
    """Neighbours that fit together into one segment, so that cleaning does not leave ever smaller ones.

    Log and index sizes are added up as if nothing was dropped. ``Cleaner.groupSegmentsBySize``, with its way to tell a
    segment's last offset from where the next one begins.
    """
    groups: list[tuple[SourceSegment, ...]] = []
    at = 0
    while at < len(sources):
        group = [sources[at]]
        sizes = sources[at][2:5]
        at += 1
        while at < len(sources):
            source = sources[at]
            sizes = (sizes[0] + source.size, sizes[1] + source.offset_index_size, sizes[2] + source.time_index_size)
            end = sources[at + 1].base_offset if at + 1 < len(sources) else first_uncleanable
            fits = sizes[0] <= segment_bytes and sizes[1] <= index_bytes and sizes[2] <= index_bytes
            if not fits or (source.size and end - 1 - group[0].base_offset > MAX_INT32):
                break
            group.append(source)
            at += 1
        groups.append(tuple(group))
    return groups
