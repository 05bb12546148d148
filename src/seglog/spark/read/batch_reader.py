"""The reader of a batch query: it plans ranges in one process and reads them in Spark's workers.

Spark calls `SeglogReader.partitions` once for each ``load()``, so the query and all queries derived from it read what
the files had at that moment. The reader does not override ``pushFilters``: in Spark 4.3 a pushed filter leaks into
other queries on the same DataFrame, whose results are then wrong (fixed by SPARK-58551).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from seglog.core.errors import UnknownPartitionError
from seglog.core.types import TopicPartition
from seglog.sources.brokers.source import BrokerSource
from seglog.sources.directories.source import DirectorySource
from seglog.sources.mounted.source import MountedSource
from seglog.sources.offsets import ResolvedRanges, resolve, resolve_bound
from seglog.sources.options.read_options import ReadOptions
from seglog.sources.planning import pack
from seglog.sources.ranges import OffsetRange, PartitionExtent
from seglog.sources.record_source import RecordSource
from seglog.spark.read.typed_columns import read_typed
from seglog.spark.runtime.error_sentences import ErrorSentences
from seglog.spark.runtime.parallelism import driver_parallelism
from seglog.spark.runtime.processes import freeze_imports
from seglog.values.reader_schema import ReadFormats

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
_SURVEYS: Final = 4
"""Further surveys if partitions disappear meanwhile."""


def source_of(options: ReadOptions) -> RecordSource:
    """The source that the options name: log directories, brokers, or both."""
    if options.client is None:
        return DirectorySource(options)
    return MountedSource(options.client, options) if options.paths else BrokerSource(options.client, options)


class SeglogReader(ErrorSentences, DataSourceReader):
    """Reads the columns ``schema`` of what the options name. It is sent to the workers, so it has plain values only."""

    def __init__(
        self,
        schema: StructType,
        options: ReadOptions,
        formats: ReadFormats | None = None,
        source: RecordSource | None = None,
    ) -> None:
        """``formats`` are those of keys and values, whose types ``schema`` has. ``source`` is by default the one that
        the options name."""
        self._schema = schema
        self._options = options
        self._formats = formats
        self.source = source or source_of(options)

    def partitions(self) -> Sequence[InputPartition]:
        return self.input_partitions(self.tasks())

    def input_partitions(self, ranges: Sequence[Any]) -> list[InputPartition]:
        """A task for each of ``ranges``, or for several small ones, unless options say how many tasks there are."""
        if self._options.is_divided:
            return [InputPartition((one,)) for one in ranges]
        return [InputPartition(task) for task in pack(ranges, max_bytes=self._options.max_bytes, cores=self._cores)]

    @property
    def _cores(self) -> int | None:
        return self._options.parallelism or driver_parallelism()

    def tasks(self) -> Sequence[Any]:
        """The ranges that the query reads, by partition and offset."""
        extents, resolved = self.extents_and(self.resolve)
        for loss in resolved.losses:
            warnings.warn(f"seglog: data was lost: {loss}", stacklevel=2)
        return self.plan(extents, resolved.ranges)

    def extents(self) -> list[Any]:
        """The partitions to read and their ends, as they are now."""
        found = self.source.survey(may_be_away=not self._options.fail_on_data_loss)
        for note in found.notes:
            warnings.warn(f"seglog: {note}", stacklevel=2)
        return found.extents

    def extents_and(self, choose: Callable[[list[Any]], T]) -> tuple[list[Any], T]:
        """`extents`, and what ``choose`` finds out about them. If a partition or a segment is deleted in between, both
        are done again."""
        for _ in range(_SURVEYS):
            extents = self.extents()
            with suppress(UnknownPartitionError, FileNotFoundError):
                return extents, choose(extents)
        extents = self.extents()
        return extents, choose(extents)

    def resolve(self, extents: Sequence[PartitionExtent]) -> ResolvedRanges:
        """The offsets to read of each partition, as `resolve` makes them of the options."""
        starting, ending = self._options.starting, self._options.ending
        fail = self._options.fail_on_data_loss
        return resolve(extents, starting, ending, self.source.find_by_time, fail_on_data_loss=fail)

    def starts(self, extents: Sequence[PartitionExtent]) -> dict[TopicPartition, int]:
        """Where the options let each partition begin; a number that they give may be outside of the log."""
        return resolve_bound("starting", extents, self._options.starting, self.source.find_by_time)

    def ends(self, extents: Sequence[PartitionExtent]) -> dict[TopicPartition, int]:
        """The same for where each partition ends."""
        return resolve_bound("ending", extents, self._options.ending, self.source.find_by_time)

    def plan(self, extents: Sequence[Any], ranges: Mapping[TopicPartition, OffsetRange]) -> Sequence[Any]:
        """Ranges for tasks; a batch of a stream is planned as a query is."""
        return self.source.plan(extents, ranges, self._cores)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task as Arrow. Without any task Spark calls this once, with ``partition.value`` None."""
        from pyspark.sql.pandas.types import to_arrow_schema

        from seglog.storage.offline.null_timestamps import log_null_timestamps

        if partition.value is None:
            return
        schema = to_arrow_schema(self._schema, timezone="UTC")

        def read(columns: pa.Schema) -> Iterator[pa.RecordBatch]:
            return log_null_timestamps(self.source.read(partition.value, columns))

        if self._formats is None:
            yield from read(schema)
        else:
            yield from read_typed(read, schema, self._formats, self._options)
        freeze_imports()
