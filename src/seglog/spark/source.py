"""The data source "seglog": checks options and schema, and hands Spark the reader or writer that they ask for."""

from __future__ import annotations

import sys
import warnings
from typing import Any, cast

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import DataType, StructType

from seglog.core.errors import InvalidConfigError
from seglog.core.fs import OsFs
from seglog.sources.options.read_options import RECORD_VIEWS, ReadOptions, parse_options
from seglog.sources.query import RecordQuery
from seglog.spark.read.batch_reader import SeglogReader
from seglog.spark.read.schema import check_schema, recall, record_schema, remember, typed_columns
from seglog.spark.runtime.error_sentences import ErrorSentences
from seglog.spark.write.write_options import refuse_options_of_the_sink
from seglog.values.reader_schema import ReadFormats, choose_formats


class SeglogDataSource(ErrorSentences, DataSource):
    """Kafka's log directories as a table of records, with the schema of Spark's Kafka connector."""

    _formats: ReadFormats | None = None

    @classmethod
    def name(cls) -> str:
        return "seglog"

    def schema(self) -> StructType:
        refuse_options_of_the_sink(self.options)
        options = parse_options(self.options, stream=None)
        if options.view not in RECORD_VIEWS:
            from seglog.spark.views.tables import table_schema

            return _for_engine(remember(table_schema(options), self.options))
        schema = record_schema(
            include_headers=options.include_headers, columns=options.columns, typed=self._typed(options)
        )
        return _for_engine(remember(schema, self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from seglog.spark.write.sink import make_writer

        if "pysail" in sys.modules:
            raise InvalidConfigError("Sail does not tell a writer which task it is: write with Spark")
        return make_writer(schema, self.options, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # Spark's name
        from seglog.spark.write.sink import make_stream_writer

        return make_stream_writer(schema, self.options, overwrite=overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from seglog.spark.read.stream_reader import SeglogStreamReader

        options = self._options_of(schema, stream=True)
        for note in options.notes:
            warnings.warn(note, stacklevel=2)
        checked = check_schema(schema, self._typed(options))
        return SeglogStreamReader(checked, options, formats=self._formats)

    def reader(self, schema: StructType) -> DataSourceReader:
        schema = _of_engine(schema)
        options = self._options_of(schema, stream=False)
        for note in options.notes:
            warnings.warn(note, stacklevel=2)
        if options.view not in RECORD_VIEWS:
            from seglog.spark.views.readers import view_reader

            return view_reader(schema, options)
        checked = check_schema(schema, self._typed(options))
        if options.view != "records":
            from seglog.spark.views.readers import latest_reader

            return latest_reader(checked, options, self._formats)
        return SeglogReader(checked, options, self._formats)

    def _options_of(self, schema: StructType, *, stream: bool) -> ReadOptions:
        given = recall(schema, self.options)
        refuse_options_of_the_sink(given)
        return parse_options(given, stream=stream)

    def _typed(self, options: ReadOptions) -> dict[str, DataType]:
        """The types of decoded columns. Spark pickles this object after `schema`, and makes readers from the copy, so
        all of a query decodes with the schemas that were found first."""
        if self._formats is None:
            self._formats = choose_formats(options.formats, lambda: _topics(options), OsFs())
        return typed_columns(self._formats, permissive=options.permissive)


def _for_engine(schema: StructType) -> StructType:
    """The schema as the engine takes it. Sail (pysail, PySpark's API without a JVM) asks PySpark to convert types
    without a time zone, which fails for timestamps; it also takes an Arrow schema."""
    if "pysail" not in sys.modules:
        return schema
    from pyspark.sql.pandas.types import to_arrow_schema

    return cast("StructType", to_arrow_schema(schema, timezone="UTC"))


def _of_engine(schema: Any) -> StructType:
    """Sail hands a reader an Arrow schema."""
    if isinstance(schema, StructType):
        return schema
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)


def _topics(options: ReadOptions) -> set[str]:
    """The topics that a query reads."""
    return {extent.topic_partition.topic for extent in RecordQuery(options).extents()}
