"""The data source "seglog": checks options and schema, and hands Spark the reader or writer that they ask for."""

from __future__ import annotations

import warnings

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from seglog.spark.options.read_options import parse_options
from seglog.spark.read.batch_reader import SeglogReader
from seglog.spark.read.schema import check_schema, recall, record_schema, remember


class SeglogDataSource(DataSource):
    """Kafka's log directories as a table of records, with the schema of Spark's Kafka connector."""

    @classmethod
    def name(cls) -> str:
        return "seglog"

    def schema(self) -> StructType:
        options = parse_options(self.options, stream=None)
        if options.view != "records":
            from seglog.spark.views.tables import table_schema

            return remember(table_schema(options), self.options)
        schema = record_schema(include_headers=options.include_headers, columns=options.columns)
        return remember(schema, self.options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from seglog.spark.write.sink import SeglogWriter

        return SeglogWriter(schema, recall(schema, self.options), overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # Spark's name
        from seglog.spark.write.sink import SeglogStreamWriter

        return SeglogStreamWriter(schema, self.options, overwrite=overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from seglog.spark.read.stream_reader import SeglogStreamReader

        options = parse_options(recall(schema, self.options), stream=True)
        for note in options.notes:
            warnings.warn(note, stacklevel=2)
        return SeglogStreamReader(check_schema(schema), options)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse_options(recall(schema, self.options))
        for note in options.notes:
            warnings.warn(note, stacklevel=2)
        if options.view != "records":
            from seglog.spark.views.readers import view_reader

            return view_reader(schema, options)
        return SeglogReader(check_schema(schema), options)
