"""`seglog spark table`: the tables of `seglog table`, whose files Spark's executors write."""

from __future__ import annotations

from seglog.cli.options import with_options
from seglog.cli.spark.session import Conf, Json, Master, session
from seglog.cli.table import FileOptions, LogArgument, LogOptions, RecordOptions, TableRuns, Warehouse, add_records


@with_options
def table(
    log: LogArgument,
    warehouse: Warehouse,
    runs: TableRuns,
    source: LogOptions,
    records: RecordOptions,
    files: FileOptions,
    master: Master = None,
    conf: Conf = None,
    json: Json = False,
) -> int:
    """Add the new committed records of LOG to Iceberg tables, as `seglog table` does, on all cores of a cluster.
    All machines must see LOG and WAREHOUSE. Tables of the newest values (`seglog table --latest`) need no cluster."""
    runs.check()
    records.check()
    with session("table", master, conf) as spark:
        from seglog.spark.tables.executor import SparkExecutor

        executor = SparkExecutor(spark)
        return add_records(
            log, warehouse, runs, source, records, files, workers=executor.cores, executor=executor, json=json
        )
