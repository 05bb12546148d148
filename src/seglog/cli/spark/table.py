"""`seglog spark table`: keep topics as Iceberg tables, once or again and again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from seglog.cli.options import OptionError, duration_ms, key_values
from seglog.cli.output import FINE, Out, count, format_size, warn
from seglog.cli.signals import Termination, note_termination
from seglog.cli.spark.session import Json
from seglog.core.clock import SystemClock
from seglog.core.extras import require

if TYPE_CHECKING:
    from seglog.table.building import TableUpdate
    from seglog.table.keyed.building import KeyedTableUpdate

_STEP_S = 0.2
"""How often a wait checks for SIGTERM."""


def table(
    log: Annotated[
        str, typer.Argument(metavar="LOG", help="A log directory, which may be in use, or brokers: host:port.")
    ],
    warehouse: Annotated[
        str, typer.Argument(metavar="WAREHOUSE", help="A directory for tables, new or not; or s3://bucket/prefix.")
    ],
    topic: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="The topic, which becomes table WAREHOUSE/NAME; repeat the option for more."),
    ] = None,
    every: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0.1, help="Run again each SECONDS, until SIGTERM.", show_default="once"),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="An option of the source: startingOffsets, failOnDataLoss, kafka.* …"),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="Drop files whose records are all older, as in 30d.", show_default="never"),
    ] = None,
    retain: Annotated[
        str | None,
        typer.Option(metavar="log", help="Drop files whose records the log has deleted.", show_default="no"),
    ] = None,
    value_format: Annotated[
        str | None,
        typer.Option(metavar="json|avro|protobuf", help="Values as typed columns.", show_default="bytes"),
    ] = None,
    key_format: Annotated[
        str | None, typer.Option(metavar="json|avro|protobuf", help="The same, for keys.", show_default="bytes")
    ] = None,
    registry: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The schema registry; or --option valueSchema=FILE.", show_default=False),
    ] = None,
    bloom: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES", help="Columns that get Bloom filters from now on, such as key.", show_default="unchanged"
        ),
    ] = None,
    partition_by: Annotated[
        str | None,
        typer.Option(metavar="day", help="Of a new table: files have records of one day each.", show_default="no"),
    ] = None,
    delta: Annotated[
        bool, typer.Option("--delta", help="Write a Delta log over the same files; later runs maintain it.")
    ] = False,
    catalog: Annotated[
        str | None,
        typer.Option(
            metavar="URI",
            help="The catalog: sqlite:///…, postgresql://…, https://… (REST).",
            show_default="WAREHOUSE/catalog.db",
        ),
    ] = None,
    catalog_property: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="A property of pyiceberg: token, s3.endpoint, s3.access-key-id …"),
    ] = None,
    latest: Annotated[
        bool, typer.Option("--latest", help="Keep the newest value of each key only, without tombstones.")
    ] = False,
    buckets: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=4096,
            help="With --latest, for a new table: files of keys. A run rewrites those whose keys changed.",
            show_default="16",
        ),
    ] = None,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="With --latest: build the table again from the whole log, in one commit.")
    ] = False,
    delete_retention: Annotated[
        str | None,
        typer.Option(
            metavar="AGE",
            help="With --latest: the topic's delete.retention.ms, as in 24h, if the log does not have it.",
            show_default="unknown",
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Files to write at a time.", show_default="cores")
    ] = None,
    json: Json = False,
) -> int:
    """Add the new committed records of LOG to Iceberg tables. Each record is added exactly once, even if a run dies.
    With --latest a table has the newest value of each key instead.
    This needs no Spark; `seglog.spark.table` reads the tables in Spark, and pyiceberg elsewhere."""
    if not topic:
        raise OptionError("--topic is missing: name the topics to keep as tables")
    if retain not in (None, "log"):
        raise OptionError(f"--retain {retain}: it can only be log")
    if partition_by not in (None, "day"):
        raise OptionError(f"--partition-by {partition_by}: it can only be day")
    _check_together(
        latest=latest,
        of_all={
            "--keep": keep,
            "--retain": retain,
            "--value-format": value_format,
            "--key-format": key_format,
            "--registry": registry,
            "--partition-by": partition_by,
        },
        of_latest={"--buckets": buckets, "--rebuild": rebuild or None, "--delete-retention": delete_retention},
    )
    given = {"valueFormat": value_format, "keyFormat": key_format, "schema.registry.url": registry}
    options = key_values("--option", option) | {name: text for name, text in given.items() if text is not None}
    properties = key_values("--catalog-property", catalog_property)
    columns = None if bloom is None else [one.strip() for one in bloom.split(",") if one.strip()]

    require("pyiceberg.catalog.sql", "table", purpose="a table")
    from seglog.table.building import Retention, update_table
    from seglog.table.catalogs import CatalogOptions

    where = CatalogOptions(catalog, properties)

    def append(name: str) -> None:
        kept = Retention(None if keep is None else duration_ms("--keep", keep), retain is not None)
        at = os.path.join(warehouse, name)
        done = update_table(
            log,
            at,
            topic=name,
            options=options,
            workers=workers,
            retention=kept,
            bloom=columns,
            delta=delta,
            catalog=where,
            partition_by=None if partition_by is None else "day",
        )
        for loss in done.losses:
            warn(f"seglog: gone: {loss}")
        _show(done, summary(done), as_json=json)

    def keep_latest(name: str, *, anew: bool) -> None:
        from seglog.table.keyed.building import update_keyed_table

        done = update_keyed_table(
            log,
            os.path.join(warehouse, name),
            topic=name,
            options=options,
            workers=workers,
            buckets=buckets,
            rebuild=anew,
            delete_retention_ms=(
                None if delete_retention is None else duration_ms("--delete-retention", delete_retention)
            ),
            bloom=columns,
            delta=delta,
            catalog=where,
        )
        _show(done, keyed_summary(done), as_json=json)

    with note_termination(wanted=every is not None) as termination:
        is_first = True
        while True:
            started = SystemClock().monotonic()
            for name in topic:
                if latest:
                    keep_latest(name, anew=rebuild and is_first)
                else:
                    append(name)
            is_first = False
            if every is None or not _wait(started + every, termination):
                return FINE


def _check_together(*, latest: bool, of_all: Mapping[str, object], of_latest: Mapping[str, object]) -> None:
    for name, value in (of_all if latest else of_latest).items():
        if value is not None:
            raise OptionError(
                f"{name} is for tables of all records: leave out --latest"
                if latest
                else f"{name} is for tables of the newest values: give --latest"
            )


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
