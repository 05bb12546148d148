"""The data source "seglog_files": the files of a table's snapshot, read by pyarrow in Spark's Python workers.

pip's PySpark has no JAR for object stores. This source reads there by pyarrow's file systems, with the list of files
and the credentials that `read_files` gives it. Spark tells a Python source neither the columns that a query needs, nor,
in 4.3, its filters in a way that can be trusted (`seglog.spark.read.batch_reader`): ``table(columns=…)`` names columns.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from seglog.core.errors import DataLossError
from seglog.sources.planning import pack
from seglog.spark.runtime.error_sentences import ErrorSentences
from seglog.spark.runtime.parallelism import driver_parallelism
from seglog.spark.runtime.processes import freeze_imports

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

FORMAT: Final = "seglog_files"
_FILES: Final = "files"
_SCHEMA: Final = "schema"
_TASK_BYTES: Final = 128 << 20
_BATCH_ROWS: Final = 1 << 16


class TableFile(NamedTuple):
    """A file of a snapshot: its URI, its number of row groups, its size in bytes."""

    location: str
    row_groups: int
    size: int


class RowGroup(NamedTuple):
    """A row group of a file, and about how many bytes it has."""

    location: str
    number: int
    size: int


def read_files(
    spark: SparkSession, files: Sequence[TableFile], schema: StructType, store: Mapping[str, str]
) -> DataFrame:
    """The rows of ``files`` with the columns and types of ``schema``. A field that a file does not have is null.

    ``store`` has pyiceberg's properties of the object store, of which some are secret: a plan does not show the options
    of a Python source.
    """
    spark.dataSource.register(TableFilesSource)
    reader = spark.read.format(FORMAT).options(**store).option(_FILES, json.dumps(files))
    return reader.option(_SCHEMA, schema.json()).load()


def hadoop_path(path: str) -> str:
    """A file as Spark's own readers name it.

    >>> hadoop_path("s3://bucket/w/t/data/1.parquet"), hadoop_path("/w/t/data/1.parquet")
    ('s3a://bucket/w/t/data/1.parquet', '/w/t/data/1.parquet')
    """
    return f"s3a://{path.removeprefix('s3://')}" if path.startswith("s3://") else path


class TableFilesSource(ErrorSentences, DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return StructType.fromJson(json.loads(self.options[_SCHEMA]))

    def reader(self, schema: StructType) -> DataSourceReader:
        store = {name: value for name, value in self.options.items() if name not in (_FILES, _SCHEMA)}
        files = [TableFile(*one) for one in json.loads(self.options[_FILES])]
        return TableFilesReader(schema, files, store)


class TableFilesReader(ErrorSentences, DataSourceReader):
    """Reads a task's row groups, file by file. It is sent to the workers, so it has plain values only."""

    def __init__(self, schema: StructType, files: Sequence[TableFile], store: Mapping[str, str]) -> None:
        self._schema = schema
        self._files = files
        self._store = store

    def partitions(self) -> Sequence[InputPartition]:
        groups = [
            RowGroup(one.location, number, one.size // one.row_groups)
            for one in self._files
            for number in range(one.row_groups)
        ]
        return [InputPartition(task) for task in pack(groups, max_bytes=_TASK_BYTES, cores=driver_parallelism())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task as Arrow. Without any task Spark calls this once, with ``partition.value`` None."""
        from pyspark.sql.pandas.types import to_arrow_schema

        if partition.value is None:
            return
        schema = to_arrow_schema(self._schema, timezone="UTC")
        for location, groups in groupby(partition.value, key=lambda one: one.location):
            yield from self._read_file(location, [one.number for one in groups], schema)
        freeze_imports()

    def _read_file(self, location: str, groups: list[int], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.parquet as pq
        from pyiceberg.io.pyarrow import PyArrowFileIO

        from seglog.table.columns.column_types import conform

        try:
            opened: Any = PyArrowFileIO(dict(self._store)).new_input(location).open()
        except FileNotFoundError:
            raise DataLossError(
                f"the file {location} of the table has vanished: it was deleted while a snapshot had it, or the query "
                "began before the last grace time"
            ) from None
        with opened, pq.ParquetFile(opened, pre_buffer=True) as file:
            for batch in file.iter_batches(_BATCH_ROWS, row_groups=groups, columns=schema.names, use_threads=False):
                yield from conform(pa.Table.from_batches([batch]), schema).to_batches()
