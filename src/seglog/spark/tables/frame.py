"""A table as a DataFrame: its files by Spark's own Parquet reader, and the log's records behind them by our source.

Both are pinned when the frame is made: a snapshot's list of files, and the offsets from its end to the log's last
stable offset. Each record is there once. A file that has vanished is an error of Spark's, never fewer rows.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from seglog.core.errors import DataLossError
from seglog.core.extras import require
from seglog.core.types import TopicPartition
from seglog.spark.options.read_options import parse_options
from seglog.spark.read.ranges import OffsetRange
from seglog.spark.read.schema import record_schema
from seglog.spark.tables.continuation import check_topic, continue_from
from seglog.spark.tables.log_survey import Log, committed_records, source_of, survey_log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from seglog.table.positions import Positions


def table(
    spark: SparkSession,
    path: str | os.PathLike[str],
    *,
    tail: Log | None = None,
    snapshot: int | None = None,
    options: Mapping[str, str] = MappingProxyType({}),
) -> DataFrame:
    """The records of the table ``warehouse/name``, with the columns of the source and ``headers``.

    ``tail`` is the log that the table is made from: a directory, or brokers as in ``host:9092``. Its committed records
    behind the table's are added, so that the frame has all of the topic up to now. ``options`` are the source's for
    it: ``kafka.*``, ``replica``, ``maxBytesPerPartition`` …. ``snapshot``: the id of an older one that is still kept.

    Raises `UnknownTableError`; and with a tail `DataLossError` if the log no longer begins where the table ends.
    """
    require("pyiceberg.catalog.sql", "table", purpose="a table")
    from seglog.table.log_table import LogTable

    with LogTable.open(path) as opened:
        found = opened.snapshot(snapshot)
        name = opened.path.name
    schema = record_schema(include_headers=True)
    if found is None or not found.files:
        rows = spark.createDataFrame([], schema)
    else:
        reader = spark.read.schema(schema).option("ignoreMissingFiles", "false").option("ignoreCorruptFiles", "false")
        rows = reader.parquet(*found.files)
    if tail is None:
        return rows
    wanted = {**options, **committed_records(tail, name), "includeHeaders": "true"}
    missing = _missing(None if found is None else found.positions, name, wanted)
    if not missing:
        return rows
    del wanted["subscribe"]
    wanted["assign"] = json.dumps({name: [one.partition for one in missing]})
    for option, offsets in (
        ("startingOffsets", {str(one.partition): offsets.start for one, offsets in missing.items()}),
        ("endingOffsets", {str(one.partition): offsets.end for one, offsets in missing.items()}),
    ):
        wanted[option] = json.dumps({name: offsets})
    return rows.unionByName(spark.read.format("seglog").options(**wanted).load())


def _missing(positions: Positions | None, topic: str, options: Mapping[str, str]) -> dict[TopicPartition, OffsetRange]:
    """The committed offsets of the log behind those of the table, without empty ranges."""
    from seglog.table.positions import Positions

    log = survey_log(source_of(parse_options(options)), positions)
    for note in log.notes:
        warnings.warn(f"seglog: {note}", stacklevel=3)
    known = positions or Positions(topic=topic)
    check_topic(known, topic, log.topic_id)
    here = {extent.topic_partition.partition for extent in log.extents}
    for number in sorted(known.partitions.keys() - here):
        raise DataLossError(f"the table has partition {number} of {topic!r}, and the log does not")
    starts = {extent.topic_partition: extent.log_start for extent in log.extents}
    found = continue_from(known, log.extents, starts, log.epochs_before(known), fail_on_data_loss=True)
    return {name: offsets for name, offsets in found.ranges.items() if offsets.size > 0}
