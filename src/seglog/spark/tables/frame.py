"""A table as a DataFrame: its files by Spark's own Parquet reader, and the log's records behind them by our source.

Files in an object store are read by pyarrow (`file_source`), unless Spark has a JAR for it. Files and tail are pinned
when the frame is made: a snapshot's list of files, and the offsets from its end to the log's last stable offset. Each
record is there once. A file that has vanished is an error, never fewer rows.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal

from seglog.core.errors import DataLossError
from seglog.core.extras import require
from seglog.core.types import TopicPartition
from seglog.sources.options.read_options import parse_options
from seglog.sources.query import source_of
from seglog.sources.ranges import OffsetRange
from seglog.spark.read.schema import COLUMNS
from seglog.spark.tables.file_source import TableFile, hadoop_path, read_files
from seglog.spark.tables.keyed_frame import TOMBSTONE, check_tail, columns_to_merge, merge_tail
from seglog.table.continuation import check_topic, continue_from
from seglog.table.log_survey import Log, LogState, committed_records, survey_log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from seglog.table.iceberg.catalogs import CatalogOptions
    from seglog.table.iceberg.log_table import LogTable, TableSnapshot
    from seglog.table.iceberg.positions import Positions
    from seglog.table.iceberg.time_range import TimeRange

_PLACE: Final = ("topic", "partition", "offset")


def table(
    spark: SparkSession,
    path: str | os.PathLike[str],
    *,
    tail: Log | None = None,
    snapshot: int | None = None,
    options: Mapping[str, str] = MappingProxyType({}),
    columns: Sequence[str] | None = None,
    catalog: CatalogOptions | None = None,
    reader: Literal["spark", "python"] | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> DataFrame:
    """The records of the table ``warehouse/name``, with the columns of the source and ``headers``, or ``columns`` of
    them. A table in an object store, ``s3://bucket/warehouse/name``, has a ``catalog`` (`CatalogOptions`).

    Keys and values have the types that the table has. So has the tail, which is decoded with the table's schemas.

    ``tail`` is the log that the table is made from: a directory, or brokers as in ``host:9092``. Its committed records
    behind the table's are added, so that the frame has all of the topic up to now. In a keyed table they take the place
    of the table's records of the same partition and key, and tombstones remove these. ``options`` are the source's for
    it: ``kafka.*``, ``replica``, ``maxBytesPerPartition`` …. ``snapshot``: the id of an older one that is still kept.

    ``reader``: "spark" is Spark's own Parquet reader, which reads only the columns that a query needs, and needs a JAR
    to read from an object store. "python" is pyarrow in Spark's Python workers; it reads all ``columns``. By default an
    object store is read by "python", all else by "spark".

    ``since`` and ``until`` (exclusive), with a time zone: only records with timestamps in between. Files without such
    records are left out before Spark sees them. In a keyed table they select among the newest values.

    A timestamp of the tail that is out of range ends the query, or is null with ``mode=permissive``, as in a run.

    Raises `UnknownTableError`; and with a tail `DataLossError` if the log no longer begins where the table ends, or if
    compaction may have removed tombstones that a keyed table needs.
    """
    require("pyiceberg.catalog.sql", "table", purpose="a table")
    from seglog.spark.tables.table_columns import spark_schema, with_columns, within
    from seglog.table.iceberg.catalogs import OWN_CATALOG
    from seglog.table.iceberg.log_table import LogTable
    from seglog.table.iceberg.time_range import ALL_TIME, TimeRange

    times = TimeRange(since, until)
    times.check()
    read = columns if columns is None or times == ALL_TIME else list(dict.fromkeys([*columns, "timestamp"]))
    with LogTable.open(path, catalog=catalog or OWN_CATALOG) as opened:
        name, formats = opened.path.name, opened.formats
        is_merged = opened.key_buckets is not None and tail is not None
        facts = opened.keyed_facts(snapshot) if is_merged else None
        if is_merged:  # an older row than the tail's is needed to know that it is hidden
            read = columns_to_merge(read)
        in_files = ALL_TIME if is_merged else times
        found = opened.snapshot(snapshot, in_files)
        schema = spark_schema(opened.form.schema, read)
        by_python = reader == "python" or (reader is None and not opened.path.is_local)
        rows = _files(spark, opened, found, schema, in_files, by_python=by_python)
    if tail is not None:
        pinned = {} if formats is None else formats.source_options()
        options = {**pinned, **options, **committed_records(tail, name), "includeHeaders": "true"}
        positions = None if found is None else found.positions
        log, missing = _missing(positions, name, options)
        if missing and is_merged:
            if positions is not None and facts is not None:
                check_tail(parse_options(options), log, positions, facts)
            rows = merge_tail(rows, _newest_behind(spark, missing, name, options, rows.columns))
        elif missing:
            rows = rows.unionByName(with_columns(_behind(spark, missing, name, options, read), schema))
    rows = within(rows, times)
    return rows if columns is None else rows.select(*columns)


def _behind(
    spark: SparkSession,
    missing: Mapping[TopicPartition, OffsetRange],
    name: str,
    options: Mapping[str, str],
    columns: Sequence[str] | None,
) -> DataFrame:
    """The committed records behind the table's, with the ``columns`` that the source has."""
    wanted = {**_assigned(missing, name, options), "endingOffsets": _offsets(missing, name, "end")}
    there = [one for one in columns or () if one in COLUMNS.names or wanted.get("mode") == "permissive"]
    if there:
        is_timed = "timestamp" in there
        wanted["columns"] = ",".join(dict.fromkeys([*there, *(_PLACE if is_timed else ())]))
    else:
        is_timed = True
    return _timed(spark.read.format("seglog").options(**wanted).load(), wanted, is_timed=is_timed)


def _timed(frame: DataFrame, options: Mapping[str, str], *, is_timed: bool) -> DataFrame:
    """Records of the tail, with timestamps as the table has them."""
    from seglog.spark.tables.table_columns import with_table_times

    return with_table_times(frame, null_timestamps=parse_options(options).null_timestamps) if is_timed else frame


def _newest_behind(
    spark: SparkSession,
    missing: Mapping[TopicPartition, OffsetRange],
    name: str,
    options: Mapping[str, str],
    columns: Sequence[str],
) -> DataFrame:
    """The newest values and tombstones behind a keyed table, with ``columns`` and those that a merge needs."""
    wanted = _assigned(missing, name, options)
    if "path" in wanted:  # through brokers the newest values are known at the log's end only
        wanted["endingOffsets"] = _offsets(missing, name, "end")
    wanted["columns"] = ",".join(dict.fromkeys([*columns, *_PLACE, TOMBSTONE]))
    found = spark.read.format("seglog").options(**wanted, view="latest-parts").load()
    return _timed(found, wanted, is_timed="timestamp" in columns)


def _assigned(missing: Mapping[TopicPartition, OffsetRange], name: str, options: Mapping[str, str]) -> dict[str, str]:
    wanted = {**options, "assign": json.dumps({name: [one.partition for one in missing]})}
    del wanted["subscribe"]
    return {**wanted, "startingOffsets": _offsets(missing, name, "start")}


def _offsets(missing: Mapping[TopicPartition, OffsetRange], name: str, side: Literal["start", "end"]) -> str:
    return json.dumps({name: {str(one.partition): getattr(offsets, side) for one, offsets in missing.items()}})


def _files(
    spark: SparkSession,
    table: LogTable,
    snapshot: TableSnapshot | None,
    schema: StructType,
    times: TimeRange,
    *,
    by_python: bool,
) -> DataFrame:
    """The records in the files of a snapshot that can have records of these times."""
    if snapshot is None or not snapshot.files:
        return spark.createDataFrame([], schema)
    if by_python:
        from seglog.table.iceberg.catalogs import store_properties
        from seglog.table.iceberg.time_range import files_within

        files = [
            TableFile(one.file_path, len(one.split_offsets or (0,)), one.file_size_in_bytes)
            for one in files_within(table.data_files(snapshot.id), table.form.ids["timestamp"], times)
        ]
        return read_files(spark, files, schema, store_properties(table.iceberg.io.properties))
    reader = spark.read.schema(schema).option("ignoreMissingFiles", "false").option("ignoreCorruptFiles", "false")
    return reader.parquet(*[hadoop_path(one) for one in snapshot.files])


def _missing(
    positions: Positions | None, topic: str, options: Mapping[str, str]
) -> tuple[LogState, dict[TopicPartition, OffsetRange]]:
    """The log, and its committed offsets behind those of the table, without empty ranges."""
    from seglog.table.iceberg.positions import Positions

    log = survey_log(source_of(parse_options(options)), positions)
    for note in log.notes:
        warnings.warn(f"seglog: {note}", stacklevel=4)
    known = positions or Positions(topic=topic)
    check_topic(known, topic, log.topic_id)
    here = {extent.topic_partition.partition for extent in log.extents}
    for number in sorted(known.partitions.keys() - here):
        raise DataLossError(f"the table has partition {number} of {topic!r}, and the log does not")
    starts = {extent.topic_partition: extent.log_start for extent in log.extents}
    found = continue_from(known, log.extents, starts, log.epochs_before(known), fail_on_data_loss=True)
    return log, {name: offsets for name, offsets in found.ranges.items() if offsets.size > 0}
