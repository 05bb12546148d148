"""The reader of a batch query: it plans ranges in one process and reads them in Spark's workers.

Spark calls `SeglogReader.partitions` once for each ``load()``, so the query and all queries derived from it read what
the files had at that moment. The reader does not override ``pushFilters``: in Spark 4.3 a pushed filter leaks into
other queries on the same DataFrame, whose results are then wrong (fixed by SPARK-58551).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from seglog.core.fs import Fs, OsFs
from seglog.core.types import TopicPartition
from seglog.spark.options.read_options import ReadOptions
from seglog.spark.read.directories.partition_files import find_by_time
from seglog.spark.read.directories.survey import Survey, survey
from seglog.spark.read.offsets import ResolvedRanges, resolve, resolve_bound
from seglog.spark.read.planning import ReadRange, pack, plan
from seglog.spark.read.ranges import OffsetRange, PartitionExtent
from seglog.spark.runtime.parallelism import driver_parallelism
from seglog.storage.offline.batch_boundaries import IndexBoundaries

if TYPE_CHECKING:
    import pyarrow as pa

_KEPT_INDEXES: Final = 16


class SeglogReader(DataSourceReader):
    """Reads the columns ``schema`` of what the options name. It is sent to the workers, so it has plain values only."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        self._schema = schema
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        return self.input_partitions(self.tasks())

    def input_partitions(self, ranges: Sequence[ReadRange]) -> list[InputPartition]:
        """A task for each of ``ranges``, or for several small ones, unless options say how many tasks there are."""
        options = self._options
        if options.min_partitions is not None or options.max_records is not None:
            return [InputPartition((one,)) for one in ranges]
        return [InputPartition(task) for task in pack(ranges, max_bytes=options.max_bytes, cores=self._cores)]

    @property
    def _cores(self) -> int | None:
        return self._options.parallelism or driver_parallelism()

    def tasks(self) -> list[ReadRange]:
        """The ranges that the query reads, by partition and offset."""
        fs = OsFs()
        extents = self.extents(fs)
        resolved = self.resolve(fs, extents)
        for loss in resolved.losses:
            warnings.warn(f"seglog: data was lost: {loss}", stacklevel=2)
        return self.plan(fs, extents, resolved.ranges)

    def resolve(self, fs: Fs, extents: Sequence[PartitionExtent]) -> ResolvedRanges:
        """The offsets to read of each partition, as `resolve` makes them of the options."""
        starting, ending = self._options.starting, self._options.ending
        fail = self._options.fail_on_data_loss
        return resolve(extents, starting, ending, partial(find_by_time, fs), fail_on_data_loss=fail)

    def starts(self, fs: Fs, extents: Sequence[PartitionExtent]) -> dict[TopicPartition, int]:
        """Where the options let each partition begin; a number that they give may be outside of the log."""
        return resolve_bound("starting", extents, self._options.starting, partial(find_by_time, fs))

    def ends(self, fs: Fs, extents: Sequence[PartitionExtent]) -> dict[TopicPartition, int]:
        """The same for where each partition ends."""
        return resolve_bound("ending", extents, self._options.ending, partial(find_by_time, fs))

    def plan(
        self, fs: Fs, extents: Sequence[PartitionExtent], ranges: Mapping[TopicPartition, OffsetRange]
    ) -> list[ReadRange]:
        """Tasks for ``ranges``; a batch of a stream is planned as a query is."""
        options = self._options
        return plan(
            extents,
            ranges,
            lru_cache(_KEPT_INDEXES)(lambda segment: IndexBoundaries(fs, segment)),
            max_bytes=options.max_bytes,
            min_partitions=options.min_partitions,
            max_records=options.max_records,
            cores=self._cores,
        )

    def extents(self, fs: Fs) -> list[PartitionExtent]:
        """The partitions to read and their ends, as the files are now."""
        return self.survey(fs, may_be_away=not self._options.fail_on_data_loss).extents

    def survey(self, fs: Fs, *, may_be_away: bool) -> Survey:
        """The same with the directories that are missing, if some may be."""
        found = survey(fs, self._options, may_be_away=may_be_away)
        for note in found.notes:
            warnings.warn(f"seglog: {note}", stacklevel=2)
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task as Arrow. Without any task Spark calls this once, with ``partition.value`` None."""
        from pyspark.sql.pandas.types import to_arrow_schema

        from seglog.spark.read.directories.task_reader import read_range

        task: tuple[ReadRange, ...] | None = partition.value
        schema = to_arrow_schema(self._schema, timezone="UTC")
        for one in task or ():
            yield from read_range(OsFs(), one, schema, self._options)
