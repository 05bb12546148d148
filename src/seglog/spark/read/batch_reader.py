"""The reader of a batch query: it plans ranges in one process and reads them in Spark's workers.

Spark calls `SeglogReader.partitions` once for each ``load()``, so the query and all queries derived from it read what
the files had at that moment. The reader does not override ``pushFilters``: in Spark 4.3 a pushed filter leaks into
other queries on the same DataFrame, whose results are then wrong (fixed by SPARK-58551).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from seglog.core.fs import OsFs
from seglog.sources.options.read_options import ReadOptions
from seglog.sources.query import RecordQuery
from seglog.sources.record_source import RecordSource
from seglog.spark.runtime.error_sentences import ErrorSentences
from seglog.spark.runtime.parallelism import driver_parallelism
from seglog.spark.runtime.processes import freeze_imports
from seglog.values.reader_schema import ReadFormats

if TYPE_CHECKING:
    import pyarrow as pa


class SeglogReader(ErrorSentences, RecordQuery, DataSourceReader):
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
        super().__init__(options, source)
        self._schema = schema
        self._formats = formats

    @property
    def cores(self) -> int | None:
        return self._options.parallelism or driver_parallelism()

    def partitions(self) -> Sequence[InputPartition]:
        return self.input_partitions(self.ranges())

    def input_partitions(self, ranges: Sequence[Any]) -> list[InputPartition]:
        return [InputPartition(task) for task in self.packed(ranges)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task as Arrow. Without any task Spark calls this once, with ``partition.value`` None."""
        from pyspark.sql.pandas.types import to_arrow_schema

        from seglog.records.columns import schema_of
        from seglog.sources.output_batches import with_schema
        from seglog.storage.offline.null_timestamps import log_null_timestamps
        from seglog.values.batch_decoder import BatchDecoder

        if partition.value is None:
            return
        schema = to_arrow_schema(self._schema, timezone="UTC")

        def read(columns: pa.Schema) -> Iterator[pa.RecordBatch]:
            return log_null_timestamps(self.source.read(partition.value, columns))

        if self._formats is None:
            yield from read(schema)
        else:
            decoder = BatchDecoder.opened(
                self._formats, OsFs(), permissive=self._options.permissive, dead_letters=self._options.dead_letters
            )
            columns = schema_of(decoder.input_columns(schema.names))
            for batch in decoder.decode_all(read(columns), schema.names):
                yield with_schema(batch, schema)
        freeze_imports()
