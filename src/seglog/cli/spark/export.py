"""`seglog spark export`: write the new records of topics as Parquet, by topic and date."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

import typer

from seglog.cli.options import key_values
from seglog.cli.output import FINE, Out, format_size, progress, show_table, warn
from seglog.cli.spark.session import Conf, DryRun, Json, Master, session
from seglog.core.fs import OsFs
from seglog.storage.offline.verify import measure

if TYPE_CHECKING:
    from seglog.spark.jobs.export import ExportResult

_COLUMNS: Final = "key,value,partition,offset,timestamp,timestampType,headers"


def export(
    path: Annotated[str, typer.Argument(metavar="DIR", help="A log directory; it may be in use.")],
    output: Annotated[
        str, typer.Argument(metavar="OUT", help="A directory for Parquet files, new or of an earlier export.")
    ],
    topic: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Only this topic; repeat the option for more.", show_default="all but internal ones"
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="An option of the source: startingOffsets, until, failOnDataLoss …"),
    ] = None,
    columns: Annotated[
        str, typer.Option(metavar="NAMES", help="Columns of the files, separated by commas.")
    ] = _COLUMNS,
    key: Annotated[str, typer.Option(metavar="binary|string|json", help="Type of the column.")] = "binary",
    value: Annotated[str, typer.Option(metavar="binary|string|json", help="Type of the column.")] = "binary",
    compression: Annotated[
        str, typer.Option(metavar="none|snappy|gzip|lz4|zstd", help="Compression of the files.")
    ] = "zstd",
    max_file_bytes: Annotated[int, typer.Option(metavar="BYTES", min=1, help="Size at which a new file starts.")] = 256
    << 20,
    dry_run: DryRun = False,
    master: Master = None,
    conf: Conf = None,
    json: Json = False,
) -> int:
    """Write the records of DIR that OUT does not have yet as Parquet. Each record is written exactly once, even if a
    job fails."""
    options = _options(topic, option)
    with session("export", master, conf) as spark:
        from seglog.spark.jobs import export as job

        with progress("exporting", measure([path], fs=OsFs())) as advance:
            done = job.export(
                spark,
                path,
                output,
                options=options,
                columns=[name.strip() for name in columns.split(",") if name.strip()],
                key=key,
                value=value,
                compression=compression,
                max_file_bytes=max_file_bytes,
                dry_run=dry_run,
                progress=advance,
            )
    with Out() as out:
        if json:
            out.json(asdict(done))
        else:
            _show(out, done)
    return FINE


def _options(topics: list[str] | None, given: list[str] | None) -> dict[str, str]:
    options = key_values("--option", given)
    if topics:
        options["subscribe"] = ",".join(topics)
    return options


def _show(out: Out, done: ExportResult) -> None:
    for loss in done.losses:
        warn(f"seglog: gone: {loss}")
    if done.ranges:
        columns = ["topic", "partition", "from", "to"]
        rows = [[one.topic, one.partition, one.start, one.end] for one in done.ranges]
        show_table(out, columns, rows, right=columns[1:])
    out.line(summary(done))


def summary(done: ExportResult) -> str:
    """The result in one line."""
    offsets = sum(one.end - one.start for one in done.ranges)
    if done.dry_run:
        return f"{offsets} offsets of {len(done.ranges)} partitions to export; nothing was changed"
    finished = f"; {done.finished} files of a failed run were completed first" if done.finished else ""
    return f"{done.records} records exported to {done.files} files, {format_size(done.bytes)}{finished}"
