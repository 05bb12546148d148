"""The source of a query: the methods that log directories and brokers have in common.

`seglog.spark.read.batch_reader` and `seglog.spark.read.stream_reader` plan and read through these methods only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from seglog.core.types import TopicPartition
from seglog.sources.ranges import OffsetRange, PartitionExtent

if TYPE_CHECKING:
    import pyarrow as pa

E = TypeVar("E", bound=PartitionExtent)


class Survey(NamedTuple, Generic[E]):
    """The partitions to read, each once, by topic and number, and warnings for the user. ``is_partial``: something that
    may have more partitions, or later records of these, cannot be read now."""

    extents: list[E]
    notes: list[str]
    is_partial: bool = False


class Available(NamedTuple):
    """All partitions that there are, whatever a query selects. ``is_partial`` as in `Survey`."""

    partitions: frozenset[TopicPartition]
    is_partial: bool


class RecordSource(Protocol):
    """Plain values only: it is sent to Spark's workers. Extents and ranges of one source are not for another."""

    def survey(
        self, *, until: str | None = None, only: Sequence[TopicPartition] | None = None, may_be_away: bool = False
    ) -> Survey[Any]:
        """The partitions as they are now. ``until`` overrides the option; ``only`` overrides the selection.

        Raises `UnknownTopicError` if a partition of the selection does not exist. With ``may_be_away``, a part of what
        the query names may be out of reach.
        """

    def available(self) -> Available:
        """All partitions that exist now, including those that the query does not select."""

    def find_by_time(self, wanted: Sequence[tuple[Any, int]]) -> list[int | None]:
        """For each extent and timestamp in ms: the first offset, not below the log start, of a record with that
        timestamp or a later one; None if there is none."""

    def plan(
        self, extents: Sequence[Any], ranges: Mapping[TopicPartition, OffsetRange], cores: int | None
    ) -> Sequence[Any]:
        """The ranges to read, divided for tasks on ``cores`` (None if unknown), by partition and offset. Each has a
        ``size`` in bytes."""

    def read(self, task: Sequence[Any], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The records of a task, as batches of exactly ``schema``."""

    def publish(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Tell others how far a stream is, if the options ask for that."""
