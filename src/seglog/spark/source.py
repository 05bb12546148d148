"""The data source behind ``spark.read.format("seglog")``: plans in one process, reads in Spark's workers.

`SeglogReader.partitions` runs once for each ``load()``: what a query and those derived from it read is what lay in the
files then. It does not override ``pushFilters``: in Spark 4.3 a pushed filter leaks into other queries on the same
DataFrame, whose results are then wrong (fixed behind SPARK-58551).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from seglog.core.errors import OffsetOutOfRangeError
from seglog.core.fs import OsFs
from seglog.core.types import TopicPartition
from seglog.spark.extents import find_by_time, find_partitions, read_extent
from seglog.spark.offsets import resolve
from seglog.spark.options import ReadOptions, parse_options
from seglog.spark.planning import ReadRange, plan, select
from seglog.spark.ranges import OffsetRange, PartitionExtent
from seglog.spark.schema import check_schema, record_schema
from seglog.storage.boundaries import IndexBoundaries
from seglog.storage.checkpoint import read_offsets
from seglog.storage.layout import LOG_START_OFFSETS

if TYPE_CHECKING:
    import pyarrow as pa

    from seglog.spark.sink import SeglogStreamWriter, SeglogWriter
    from seglog.spark.stream import SeglogStreamReader

_KEPT_INDEXES: Final = 16


class SeglogDataSource(DataSource):
    """Kafka's log directories as a table with a row for each record: the schema of Spark's Kafka connector."""

    @classmethod
    def name(cls) -> str:
        return "seglog"

    def schema(self) -> StructType:
        options = parse_options(self.options)
        if options.view != "records":
            from seglog.spark import views

            return views.schema(options)
        return record_schema(include_headers=options.include_headers)

    def writer(self, schema: StructType, overwrite: bool) -> SeglogWriter:
        from seglog.spark.sink import SeglogWriter

        return SeglogWriter(schema, self.options, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> SeglogStreamWriter:  # Spark's name
        from seglog.spark.sink import SeglogStreamWriter

        return SeglogStreamWriter(schema, self.options, overwrite=overwrite)

    def streamReader(self, schema: StructType) -> SeglogStreamReader:
        from seglog.spark.stream import SeglogStreamReader

        return SeglogStreamReader(check_schema(schema), parse_options(self.options, stream=True))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse_options(self.options)
        for note in options.notes:
            warnings.warn(note, stacklevel=2)
        if options.view != "records":
            from seglog.spark import views

            return views.reader(schema, options)
        return SeglogReader(check_schema(schema), options)


class SeglogReader(DataSourceReader):
    """Reads what the options name, of it the columns of ``schema``. Goes to the workers: plain values only."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        self._schema = schema
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(task) for task in self.tasks()]

    def tasks(self) -> list[ReadRange]:
        """What each task of the query will read, by partition and offset."""
        options, fs = self._options, OsFs()
        extents = self.extents(fs)
        resolved = resolve(
            extents,
            options.starting,
            options.ending,
            lambda extent, timestamp: find_by_time(fs, extent, timestamp),
            fail_on_data_loss=options.fail_on_data_loss,
        )
        return self.plan(fs, extents, resolved.ranges)

    def plan(
        self, fs: OsFs, extents: Sequence[PartitionExtent], ranges: Mapping[TopicPartition, OffsetRange]
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
            cores=os.cpu_count() or 1,
        )

    def extents(self, fs: OsFs) -> list[PartitionExtent]:
        """The partitions to read; of one that several log directories have, the longest replica."""
        found = find_partitions(fs, self._options.paths)
        chosen = set(select(self._options.selection, [partition.topic_partition for partition in found]))
        starts: dict[str, dict[TopicPartition, int]] = {}
        extents: dict[TopicPartition, PartitionExtent] = {}
        for path, partition in found:
            if partition not in chosen:
                continue
            log_dir = os.path.dirname(path)
            if log_dir not in starts:
                starts[log_dir] = read_offsets(fs, os.path.join(log_dir, LOG_START_OFFSETS))
            extent = read_extent(fs, path, partition, starts[log_dir].get(partition, 0))
            other = extents.get(partition)
            if other is None or extent.log_end > other.log_end:
                extents[partition] = extent
        return list(extents.values())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task as Arrow. ``partition.value`` is None where Spark asks although there is nothing."""
        from pyspark.sql.pandas.types import to_arrow_schema

        task: ReadRange | None = partition.value
        if task is not None:
            yield from read_range(task, to_arrow_schema(self._schema, timezone="UTC"))


def read_range(task: ReadRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The records of ``task`` as batches of exactly ``schema``, whose names are some of ours: Spark refuses all others.

    Raises what `iter_table_batches` raises on damage, with file, position and reason; `OffsetOutOfRangeError` if a
    segment was deleted or cut since the query was planned.
    """
    import pyarrow as pa

    from seglog.records.columnar import Wanted
    from seglog.records.columns import Origin
    from seglog.storage.table_batches import Stretch, iter_table_batches

    fs = OsFs()
    wanted = Wanted(columns=schema.names, low=task.offsets.start, high=task.offsets.end)
    for piece in task.pieces:
        try:
            size = fs.stat(piece.log).size
            if size < piece.end:
                raise OffsetOutOfRangeError(
                    f"{piece.log} was cut to {size} bytes since the query was planned, which reads to {piece.end}: "
                    "load() again"
                )
            stretch = Stretch(piece.log, piece.start, piece.end)
            for batch in iter_table_batches(fs, stretch, wanted, Origin(*task.topic_partition)):
                arrays = [batch.column(name).cast(schema.field(name).type) for name in schema.names]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)
        except FileNotFoundError as error:
            raise OffsetOutOfRangeError(
                f"{piece.log} was deleted since the query was planned (retention, or compaction): load() again"
            ) from error
