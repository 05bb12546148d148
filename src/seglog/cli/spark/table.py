"""`seglog spark table`: keep topics as Iceberg tables, once or again and again."""

from __future__ import annotations

import os
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
    from seglog.spark.tables.building import TableUpdate

_STEP_S = 0.2
"""How often a wait checks for SIGTERM."""


def table(
    log: Annotated[str, typer.Argument(metavar="LOG", help="A log directory, perhaps in use; or brokers: host:port.")],
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
        typer.Option(
            metavar="AGE", help="Let files go whose records are all older, as in 30d.", show_default="for ever"
        ),
    ] = None,
    retain: Annotated[
        str | None,
        typer.Option(metavar="log", help="Let files go whose records the log has deleted.", show_default="no"),
    ] = None,
    bloom: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES", help="Columns that have Bloom filters from now on, such as key.", show_default="as it is"
        ),
    ] = None,
    delta: Annotated[
        bool, typer.Option("--delta", help="Make a Delta log over the same files; later runs keep it up.")
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
    workers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Files to write at a time.", show_default="cores")
    ] = None,
    json: Json = False,
) -> int:
    """Add the new committed records of LOG to Iceberg tables. Each record is added exactly once, even if a run dies.
    This needs no Spark; `seglog.spark.table` reads the tables in Spark, and pyiceberg elsewhere."""
    if not topic:
        raise OptionError("--topic is missing: name the topics to keep as tables")
    if retain not in (None, "log"):
        raise OptionError(f"--retain {retain}: it can only be log")
    options = key_values("--option", option)
    properties = key_values("--catalog-property", catalog_property)
    from seglog.spark.tables.building import Retention, update_table

    require("pyiceberg.catalog.sql", "table", purpose="a table")
    from seglog.table.catalogs import CatalogOptions

    columns = None if bloom is None else [one.strip() for one in bloom.split(",") if one.strip()]
    retention = Retention(None if keep is None else duration_ms("--keep", keep), retain is not None)

    with note_termination(wanted=every is not None) as termination:
        while True:
            started = SystemClock().monotonic()
            for name in topic:
                at = os.path.join(warehouse, name)
                done = update_table(
                    log,
                    at,
                    topic=name,
                    options=options,
                    workers=workers,
                    retention=retention,
                    bloom=columns,
                    delta=delta,
                    catalog=CatalogOptions(catalog, properties),
                )
                _show(done, as_json=json)
            if every is None or not _wait(started + every, termination):
                return FINE


def _wait(until: float, termination: Termination) -> bool:
    """Wait until that moment of the monotonic clock; False once SIGTERM has come."""
    clock = SystemClock()
    while not termination.has_come:
        left = until - clock.monotonic()
        if left <= 0:
            return True
        clock.sleep(min(left, _STEP_S))
    return False


def _show(done: TableUpdate, *, as_json: bool) -> None:
    for loss in done.losses:
        warn(f"seglog: gone: {loss}")
    with Out() as out:
        if as_json:
            out.json(asdict(done))
        else:
            out.line(summary(done))


def summary(done: TableUpdate) -> str:
    """The result in one line."""
    added = f"{count(done.added_records, 'record')} added in {count(done.added_files, 'file')}"
    has = f"{count(done.records, 'record')}, {count(done.files, 'file')}, {format_size(done.bytes)}"
    if done.expired_files:
        added += f"; {count(done.expired_files, 'old file')} let go"
    return f"{os.path.basename(done.table)}: {added}; the table has {has}, and is {count(done.behind, 'offset')} behind"
