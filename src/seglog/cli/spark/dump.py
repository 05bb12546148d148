"""`seglog spark dump`: records, batches, segments or group offsets as a table, JSON lines or Parquet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from seglog.cli.options import key_values
from seglog.cli.output import FINE, Out, fail, show_table
from seglog.cli.spark.session import Conf, Json, Master, Options, Topics, session
from seglog.core.progress import progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SHOWN_BYTES = 40


def dump(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH...", help="Log directories, partitions, or globs of them.", show_default=False),
    ],
    view: Annotated[
        str, typer.Option(metavar="records|batches|segments|group-offsets|tasks", help="The rows to show.")
    ] = "records",
    topic: Topics = None,
    columns: Annotated[
        str | None, typer.Option(metavar="A,B", help="Only these columns; others are not decoded.")
    ] = None,
    where: Annotated[
        str | None, typer.Option(metavar="SQL", help="Only rows that match, as in \"verdict != 'ok'\".")
    ] = None,
    option: Options = None,
    limit: Annotated[
        int, typer.Option(metavar="N", min=0, help="Show at most N rows. JSON and Parquet contain all rows.")
    ] = 20,
    output: Annotated[str | None, typer.Option(metavar="DIR", help="Write Parquet to a new directory.")] = None,
    master: Master = None,
    conf: Conf = None,
    json: Json = False,
) -> int:
    """Show the contents of the files, or write them as Parquet. The files are not changed."""
    if json and output is not None:
        return fail("--json and --output exclude each other")
    options = key_values("--option", option)
    if columns is not None:
        options["columns"] = columns
    with session("dump", master, conf) as spark:
        from seglog.spark.jobs import dump as job

        frame = job.dump(spark, paths, view=view, topics=topic or (), options=options)
        if where is not None:
            frame = frame.where(where)
        with Out() as out:
            if output is not None:
                out.line(f"{_write(spark, frame, output)} rows in {output}")
            elif json:
                for document in job.documents(frame):
                    out.json(document)
            else:
                _show(out, frame, limit)
    return FINE


def _write(spark: SparkSession, frame: DataFrame, output: str) -> int:
    """Returns the number of rows. The progress bar counts Spark's tasks."""
    from seglog.spark.jobs.driver import watched

    tasks = frame.rdd.getNumPartitions()
    with progress("writing", tasks) as advance, watched(spark, tasks, tasks, advance):
        frame.write.parquet(output)
    return spark.read.parquet(output).count()


def _show(out: Out, frame: DataFrame, limit: int) -> None:
    rows = frame.limit(limit + 1).collect()
    numbers = [name for name, type_ in frame.dtypes if type_ in ("int", "bigint")]
    show_table(out, frame.columns, [[_cell(cell) for cell in row] for row in rows[:limit]], right=numbers)
    if len(rows) > limit:
        out.line("… and more: --limit N shows N rows, --json or --output DIR all rows")


def _cell(value: Any) -> object:
    """A value, shortened to fit a line."""
    if isinstance(value, bytes | bytearray):
        text = bytes(value[:_SHOWN_BYTES]).decode(errors="backslashreplace")
        shown = "".join(one if one.isprintable() else f"\\x{ord(one):02x}" for one in text)
        return f"{shown}… ({len(value)} bytes)" if len(value) > _SHOWN_BYTES else shown
    if isinstance(value, list):
        return ", ".join(f"{_cell(one[0])}={_cell(one[1])}" if isinstance(one, tuple) else str(one) for one in value)
    return value
