"""`seglog spark ingest`: files into a topic, all or nothing and exactly once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, get_args

import typer

from seglog.cli.options import check_choice, key_values, with_options
from seglog.cli.output import FINE, Out, count, format_size, warn
from seglog.cli.spark.session import Conf, DryRun, Json, Master, check_paths, session
from seglog.core.progress import progress

if TYPE_CHECKING:
    from seglog.spark.jobs.ingest import Columns, IngestResult, Input

_UNITS: Final = ("s", "ms", "us", "ns")
_BAD_LINES: Final = ("error", "skip")


class FieldOptions(NamedTuple):
    """The parts of a line that become the fields of a record."""

    value: Annotated[
        str | None,
        typer.Option(metavar="EXPR", help="A column, '{a}-{b}', or * for JSON.", show_default="the line; of Parquet *"),
    ] = None
    key: Annotated[str | None, typer.Option(metavar="EXPR", help="A column, or as in '{carrier}-{flight}'.")] = None
    timestamp: Annotated[str | None, typer.Option(metavar="COLUMN", help="The time of a record.")] = None
    timestamp_format: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="As of strptime.", show_default="ISO 8601")
    ] = None
    timestamp_unit: Annotated[str, typer.Option(metavar="|".join(_UNITS), help="The unit of numbers.")] = "ms"
    partition: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The partition.", show_default="by the key")
    ] = None
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=EXPR", help="A record header; repeat the option for more.")
    ] = None

    def columns(self, headers: Mapping[str, str]) -> Columns:
        from seglog.spark.jobs.input.columns import Columns

        given: dict[str, Any] = self._asdict()
        del given["header"]
        return Columns(**given, headers=headers)


class ReaderOptions(NamedTuple):
    """The format of the files."""

    no_names: Annotated[bool, typer.Option("--no-names", help="CSV without a header line: columns f0, f1 …")] = False
    names: Annotated[str | None, typer.Option(metavar="A,B", help="Names of CSV's columns, with --no-names.")] = None
    delimiter: Annotated[str | None, typer.Option(metavar="CHAR", help="Delimiter of CSV.")] = None
    multiline: Annotated[bool, typer.Option("--multiline", help="Quoted values of CSV may contain line ends.")] = False
    pattern: Annotated[
        str | None,
        typer.Option(
            metavar="REGEX", help="For text: named groups become columns. common, combined: logs of web servers."
        ),
    ] = None
    bad_lines: Annotated[str, typer.Option(metavar="|".join(_BAD_LINES), help="Fail at a bad line, or skip it.")] = (
        "error"
    )
    again: Annotated[bool, typer.Option("--again", help="Also ingest files that were ingested before.")] = False
    take_unfinished: Annotated[
        bool, typer.Option("--take-unfinished", help="Read a last line without a line end too.")
    ] = False

    def input(self, file_format: str | None) -> Input:
        from seglog.spark.jobs.ingest import Input

        given: dict[str, Any] = self._asdict()
        given["names"] = tuple(self.names.split(",")) if self.names else ()
        given["format"], given["header"] = file_format, not given.pop("no_names")
        del given["again"], given["take_unfinished"]
        return Input(**given)


_LINE: Final = FieldOptions()
_BY_NAME: Final = ReaderOptions()


@with_options
def ingest(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="FILE...", help="Files, directories or globs, in the order of the records."),
    ],
    log_dir: Annotated[str, typer.Option("--into", metavar="DIR", help="The log directory.")],
    topic: Annotated[str, typer.Option(metavar="NAME", help="The topic; created if it does not exist.")],
    partitions: Annotated[int | None, typer.Option(metavar="N", min=1, help="Partitions of a new topic.")] = None,
    file_format: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="csv|json|parquet|text", help="Of the files.", show_default="by the file name"
        ),
    ] = None,
    fields: FieldOptions = _LINE,
    lines: ReaderOptions = _BY_NAME,
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="An option of the sink, such as compression.type=zstd; repeat the option for more.",
        ),
    ] = None,
    dry_run: DryRun = False,
    master: Master = None,
    conf: Conf = None,
    json: Json = False,
) -> int:
    """Append the records of files to a topic: all of them, or none if there is an error.

    Files that an earlier run has read are skipped; of files that have grown, the new lines are read.
    """
    check_choice("--bad-lines", lines.bad_lines, _BAD_LINES)
    check_choice("--timestamp-unit", fields.timestamp_unit, _UNITS)
    check_paths([path for path in paths if not set(path) & set("*?[")])
    headers = key_values("--header", fields.header, shape="NAME=EXPR")
    options = key_values("--option", option, shape="NAME=VALUE")
    with session("ingest", master, conf) as spark:
        from seglog.core.fs import OsFs
        from seglog.spark.jobs import ingest as job
        from seglog.spark.jobs.input.recipe import Format
        from seglog.spark.jobs.input.splits import list_files

        if file_format is not None:
            check_choice("--format", file_format, get_args(Format))
        fs = OsFs()
        with progress("reading", sum(fs.stat(file).size for file in list_files(fs, paths))) as advance:
            done = job.ingest(
                spark,
                paths,
                log_dir,
                topic,
                columns=fields.columns(headers),
                source=lines.input(file_format),
                partitions=partitions,
                options=options,
                again=lines.again,
                take_unfinished=lines.take_unfinished,
                dry_run=dry_run,
                progress=advance,
            )
    _print(done, json=json)
    return FINE


def _print(done: IngestResult, *, json: bool) -> None:
    for example in done.bad_examples:
        warn(f"seglog: skipped: {example}")
    for path, size in done.unfinished.items():
        warn(f"seglog: {path}: the last line has no line end; its {size} bytes were skipped (--take-unfinished)")
    with Out() as out:
        if json:
            out.json(_document(done))
        else:
            for row in done.preview:
                out.line(", ".join(f"{name}={_shown(cell)}" for name, cell in row.items()))
            out.line(summary(done))


def summary(done: IngestResult) -> str:
    """The result in one line."""
    files = f"{count(done.files, 'file')}, {format_size(done.bytes)}"
    if done.dry_run:
        return f"{files} would be read by {done.tasks} tasks into topic {done.topic}; nothing was written"
    if done.already:
        return f"topic {done.topic} has all of these records already; nothing was written (--again repeats it)"
    bad = f", {done.bad_lines} bad lines skipped" if done.bad_lines else ""
    known = f", {done.known} files had nothing new" if done.known else ""
    return f"{files}: {done.records} records into topic {done.topic}{bad}{known}"


def _document(done: IngestResult) -> dict[str, object]:
    document = asdict(done)
    document["preview"] = [{name: _shown(cell) for name, cell in row.items()} for row in done.preview]
    return document


def _shown(cell: object) -> object:
    if isinstance(cell, bytes):
        return cell.decode(errors="backslashreplace")
    if isinstance(cell, list):
        return {one["key"]: _shown(one["value"]) for one in cell}
    return cell
