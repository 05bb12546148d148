"""`seglog table`: keep topics as Iceberg tables, once or again and again. `seglog spark table` shares its options."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from seglog.cli.options import OptionError, duration_ms, key_values, with_options
from seglog.cli.output import FINE, Out, count, format_size, warn
from seglog.cli.signals import Termination, note_termination
from seglog.core.clock import SystemClock
from seglog.core.extras import require

if TYPE_CHECKING:
    from seglog.table.building import TableUpdate
    from seglog.table.files.file_task import Executor
    from seglog.table.iceberg.catalogs import CatalogOptions
    from seglog.table.keyed.building import KeyedTableUpdate

_STEP_S = 0.2
"""How often a wait checks for SIGTERM."""

LogArgument = Annotated[
    str, typer.Argument(metavar="LOG", help="A log directory, which may be in use, or brokers: host:port.")
]
Warehouse = Annotated[
    str, typer.Argument(metavar="WAREHOUSE", help="A directory for tables, new or not; or s3://bucket/prefix.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class TableRuns(NamedTuple):
    """Which topics become tables, and how often."""

    topic: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="The topic, which becomes table WAREHOUSE/NAME; repeat the option for more."),
    ] = None
    every: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0.1, help="Run again each SECONDS, until SIGTERM.", show_default="once"),
    ] = None

    def check(self) -> None:
        if not self.topic:
            raise OptionError("--topic is missing: name the topics to keep as tables")

    def run(self, make: Callable[[str, bool], None]) -> int:
        """Call ``make`` with each topic, and whether this is the first round."""
        with note_termination(wanted=self.every is not None) as termination:
            is_first = True
            while True:
                started = SystemClock().monotonic()
                for name in self.topic or ():
                    make(name, is_first)
                is_first = False
                if self.every is None or not _wait(started + self.every, termination):
                    return FINE


class LogOptions(NamedTuple):
    """How the log is read, and its keys and values decoded."""

    option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="An option of the source: startingOffsets, failOnDataLoss, kafka.* …"),
    ] = None
    value_format: Annotated[
        str | None,
        typer.Option(metavar="json|avro|protobuf", help="Values as typed columns.", show_default="bytes"),
    ] = None
    key_format: Annotated[
        str | None, typer.Option(metavar="json|avro|protobuf", help="The same, for keys.", show_default="bytes")
    ] = None
    registry: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The schema registry; or --option valueSchema=FILE.", show_default=False),
    ] = None

    def all(self) -> dict[str, str]:
        given = {
            "valueFormat": self.value_format,
            "keyFormat": self.key_format,
            "schema.registry.url": self.registry,
        }
        return key_values("--option", self.option) | {name: text for name, text in given.items() if text is not None}


class FileOptions(NamedTuple):
    """The files of a table, and who else reads them."""

    bloom: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES", help="Columns that get Bloom filters from now on, such as key.", show_default="unchanged"
        ),
    ] = None
    delta: Annotated[
        bool, typer.Option("--delta", help="Write a Delta log over the same files; later runs maintain it.")
    ] = False
    catalog: Annotated[
        str | None,
        typer.Option(
            metavar="URI",
            help="The catalog: sqlite:///…, postgresql://…, https://… (REST).",
            show_default="WAREHOUSE/catalog.db",
        ),
    ] = None
    catalog_property: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="A property of pyiceberg: token, s3.endpoint, s3.access-key-id …"),
    ] = None

    @property
    def columns(self) -> list[str] | None:
        return None if self.bloom is None else [one.strip() for one in self.bloom.split(",") if one.strip()]

    def where(self) -> CatalogOptions:
        require("pyiceberg.catalog.sql", "table", purpose="a table")
        from seglog.table.iceberg.catalogs import CatalogOptions

        return CatalogOptions(self.catalog, key_values("--catalog-property", self.catalog_property))


class RecordOptions(NamedTuple):
    """What only a table of all records has."""

    keep: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="Drop files whose records are all older, as in 30d.", show_default="never"),
    ] = None
    retain: Annotated[
        str | None,
        typer.Option(metavar="log", help="Drop files whose records the log has deleted.", show_default="no"),
    ] = None
    partition_by: Annotated[
        str | None,
        typer.Option(metavar="day", help="Of a new table: files have records of one day each.", show_default="no"),
    ] = None

    def check(self) -> None:
        if self.retain not in (None, "log"):
            raise OptionError(f"--retain {self.retain}: it can only be log")
        if self.partition_by not in (None, "day"):
            raise OptionError(f"--partition-by {self.partition_by}: it can only be day")


class LatestOptions(NamedTuple):
    """Tables of the newest values."""

    latest: Annotated[
        bool, typer.Option("--latest", help="Keep the newest value of each key only, without tombstones.")
    ] = False
    buckets: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=4096,
            help="With --latest, for a new table: files of keys. A run rewrites those whose keys changed.",
            show_default="16",
        ),
    ] = None
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="With --latest: build the table again from the whole log, in one commit.")
    ] = False
    delete_retention: Annotated[
        str | None,
        typer.Option(
            metavar="AGE",
            help="With --latest: the topic's delete.retention.ms, as in 24h, if the log does not have it.",
            show_default="unknown",
        ),
    ] = None

    def check(self, log: LogOptions, records: RecordOptions) -> None:
        """Refuse options of the other kind of table."""
        formats = {"--value-format": log.value_format, "--key-format": log.key_format, "--registry": log.registry}
        of_all = {**_flags(records), **formats}
        of_latest = {**_flags(self), "--latest": None}
        for name, value in (of_all if self.latest else of_latest).items():
            if value:
                raise OptionError(
                    f"{name} is for tables of all records: leave out --latest"
                    if self.latest
                    else f"{name} is for tables of the newest values: give --latest"
                )


def _flags(group: NamedTuple) -> dict[str, object]:
    return {f"--{name.replace('_', '-')}": value for name, value in group._asdict().items()}


@with_options
def table(
    log: LogArgument,
    warehouse: Warehouse,
    runs: TableRuns,
    source: LogOptions,
    records: RecordOptions,
    files: FileOptions,
    newest: LatestOptions,
    workers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Files to write at a time.", show_default="cores")
    ] = None,
    json: Json = False,
) -> int:
    """Add the new committed records of LOG to Iceberg tables. Each record is added exactly once, even if a run dies.
    With --latest a table has the newest value of each key instead.
    pyiceberg, Polars and DuckDB read the tables, and Spark by `seglog.spark.table`."""
    runs.check()
    newest.check(source, records)
    if not newest.latest:
        return add_records(log, warehouse, runs, source, records, files, workers=workers, json=json)
    options, where = source.all(), files.where()
    retention = newest.delete_retention
    from seglog.table.keyed.building import update_keyed_table

    def make(name: str, is_first: bool) -> None:
        done = update_keyed_table(
            log,
            os.path.join(warehouse, name),
            topic=name,
            options=options,
            workers=workers,
            buckets=newest.buckets,
            rebuild=newest.rebuild and is_first,
            delete_retention_ms=None if retention is None else duration_ms("--delete-retention", retention),
            bloom=files.columns,
            delta=files.delta,
            catalog=where,
        )
        _show(done, keyed_summary(done), as_json=json)

    return runs.run(make)


def add_records(
    log: str,
    warehouse: str,
    runs: TableRuns,
    source: LogOptions,
    records: RecordOptions,
    files: FileOptions,
    *,
    workers: int | None = None,
    executor: Executor | None = None,
    json: bool = False,
) -> int:
    """Keep tables of all records, as the options say. The tasks of a run are for ``executor``, if there is one."""
    records.check()
    options, where = source.all(), files.where()
    from seglog.table.building import Retention, update_table

    kept = Retention(None if records.keep is None else duration_ms("--keep", records.keep), records.retain is not None)

    def make(name: str, _is_first: bool) -> None:
        done = update_table(
            log,
            os.path.join(warehouse, name),
            topic=name,
            options=options,
            workers=workers,
            retention=kept,
            bloom=files.columns,
            delta=files.delta,
            catalog=where,
            partition_by=None if records.partition_by is None else "day",
            executor=executor,
        )
        for loss in done.losses:
            warn(f"seglog: gone: {loss}")
        _show(done, summary(done), as_json=json)

    return runs.run(make)


def _wait(until: float, termination: Termination) -> bool:
    """Wait until that moment of the monotonic clock; False once SIGTERM has come."""
    clock = SystemClock()
    while not termination.has_come:
        left = until - clock.monotonic()
        if left <= 0:
            return True
        clock.sleep(min(left, _STEP_S))
    return False


def _show(done: TableUpdate | KeyedTableUpdate, text: str, *, as_json: bool) -> None:
    with Out() as out:
        if as_json:
            out.json(asdict(done))
        else:
            out.line(text)


def summary(done: TableUpdate) -> str:
    """The result in one line."""
    added = f"{count(done.added_records, 'record')} added in {count(done.added_files, 'file')}"
    has = f"{count(done.records, 'record')}, {count(done.files, 'file')}, {format_size(done.bytes)}"
    if done.undecodable:
        added += f"; {count(done.undecodable, 'value')} could not be decoded"
    if done.null_timestamps:
        added += f"; {count(done.null_timestamps, 'timestamp')} out of range"
    if done.expired_files:
        added += f"; {count(done.expired_files, 'old file')} let go"
    return f"{os.path.basename(done.table)}: {added}; the table has {has}, and is {count(done.behind, 'offset')} behind"


def keyed_summary(done: KeyedTableUpdate) -> str:
    """The same for the newest values."""
    changed = f"{count(done.changed_keys, 'key')} changed in {done.rewritten_buckets} of {done.buckets} buckets"
    has = f"{count(done.records, 'key')}, {count(done.files, 'file')}, {format_size(done.bytes)}"
    split = f"; {count(done.split_keys, 'key')} in several partitions" if done.split_keys else ""
    if done.null_timestamps:
        changed += f"; {count(done.null_timestamps, 'timestamp')} out of range"
    behind = f"{count(done.behind, 'offset')} behind"
    return f"{os.path.basename(done.table)}: {changed}; the table has {has}, and is {behind}{split}"
