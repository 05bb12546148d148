"""A range of a partition's offsets that is read for its newest values, and the history that such a read needs."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from seglog.core.errors import DataLossError
from seglog.core.types import TopicPartition
from seglog.sources.offsets import DATA_LOSS_HINT
from seglog.sources.ranges import OffsetRange

if TYPE_CHECKING:
    import pyarrow as pa

_log: Final = logging.getLogger("seglog.spark")


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestRange:
    """``range`` is one of the record source's own. ``until`` is the offset as of which its partition is read.

    ``sealed`` has the sizes of the range's sealed files when the query was planned. If ``follows``, the range is read
    on to the partition's end.
    """

    range: Any
    until: int
    sealed: Mapping[str, int] | None = None
    follows: bool = False

    @property
    def size(self) -> int:
        """Bytes to read."""
        size: int = self.range.size
        return size


def deleted_meanwhile(partition: TopicPartition, upto: int, *, fail: bool) -> None:
    """Its records were read up to an offset, and whether newer ones or a round have replaced some is not known any
    more. Raises a `DataLossError` if the query is to ``fail``."""
    what = f"{partition} was deleted while its newest values were read, up to {upto}"
    if fail:
        raise DataLossError(f"{what}; {DATA_LOSS_HINT}")
    _log.warning("seglog: data was lost: %s", what)


class History(Protocol):
    """Knows whether compaction has left the newest values as of an offset. Plain values only."""

    def check(self, extents: Sequence[Any], ranges: Mapping[TopicPartition, OffsetRange]) -> frozenset[TopicPartition]:
        """The partitions of which one task must read all, and on to the end, because compaction cannot be watched.

        Raises `OffsetOutOfRangeError` if a partition's newest values as of the end of its range may be gone.
        """

    def range_of(self, one: Any, extent: Any, until: int, *, follows: bool) -> LatestRange:
        """``one``, a range of the record source, for a task; ``follows``: of one of `check`'s partitions."""

    def read(self, task: LatestRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The records of a range in the order of their offsets, as batches of ``schema``.

        Raises `OffsetOutOfRangeError` at the end if compaction may have taken some that counted when they were read,
        and `deleted_meanwhile` if that cannot be known.
        """
