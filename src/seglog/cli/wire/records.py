"""`seglog records delete`: the records of partitions before an offset, as kafka-delete-records deletes them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from seglog.cli.options import parse_time, with_options
from seglog.cli.output import FINE, Out, fail, show_table
from seglog.cli.wire import clients as wire
from seglog.cli.wire.clients import Cluster
from seglog.cli.wire.partition_lists import named_partitions, read_partitions
from seglog.cluster.moves import Place
from seglog.core.errors import RequestFailedError

_TO_HIGH_WATERMARK: Final = -1
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be deleted, and delete nothing.")]


@with_options
def delete(
    places: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOPIC[:0,2-4]]...", help="Topics, or partitions of them.", show_default=False),
    ] = None,
    before: Annotated[
        str | None,
        typer.Option(
            "--before",
            metavar="WHERE",
            help="An offset; end for all that is committed; or @TIME: ms since 1970, ISO 8601, or @-7d.",
            show_default=False,
        ),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(
            "--offset-json-file", metavar="FILE", help="Partitions with offsets, in Kafka's form.", show_default=False
        ),
    ] = None,
    dry_run: _DryRun = False,
    brokers: wire.Brokers = wire.DEFAULT_BROKERS,
    json: wire.Json = False,
) -> int:
    """Delete the records before an offset; they cannot be had back. Disks get their space when whole segments go."""
    if (file is None) == (not places) or (file is None) == (before is None):
        return fail("records delete takes topics with --before, or --offset-json-file")
    cluster = brokers.cluster()
    try:
        wanted = _of_file(file) if file is not None else _before(cluster, places or (), before or "")
    except ValueError as error:
        return fail(error)
    starts = {place: found.offset for place, found in cluster.offsets(wanted, "earliest").items()}
    out, code = Out(), FINE
    rows: list[tuple[object, ...]] = []
    for place, (mark, reason) in _delete(cluster, wanted, dry_run=dry_run).items():
        if reason is not None:
            code = fail(f"topic {place[0]}, partition {place[1]}: {reason}")
        if json:
            document = {"topic": place[0], "partition": place[1], "before": starts[place], "lowWatermark": mark}
            out.json({**document, "done": reason is None and not dry_run, "error": reason})
        elif reason is None:
            rows.append((*place, starts[place], mark, max(0, (mark or 0) - starts[place])))
    if rows:
        columns = ("topic", "partition", "began at", "would begin at" if dry_run else "begins at", "records at most")
        show_table(out, columns, rows, right=columns[1:])
    out.flush()
    return code


def _of_file(path: str) -> dict[Place, int]:
    wanted: dict[Place, int] = {}
    for place, offset in read_partitions(path, "offset").items():
        if type(offset) is not int or offset < _TO_HIGH_WATERMARK:
            raise ValueError(f"{path}: {place[0]}-{place[1]}: {offset!r} is not an offset, nor -1 for the end")
        wanted[place] = offset
    return wanted


def _before(cluster: Cluster, places: Sequence[str], where: str) -> dict[Place, int]:
    partitions = named_partitions(cluster.topics(), places, "TOPIC")
    if where == "end":
        return dict.fromkeys(partitions, _TO_HIGH_WATERMARK)
    if re.fullmatch(r"[0-9]{1,18}", where):
        return dict.fromkeys(partitions, int(where))
    try:
        if not where.startswith("@"):
            raise ValueError
        found = cluster.offsets(partitions, parse_time(where[1:]))
    except ValueError:
        raise ValueError(f"--before is an offset, end or @TIME, not {where}") from None
    # Nothing is later than that: all of it goes.
    return {place: found[place].offset if found[place].offset >= 0 else _TO_HIGH_WATERMARK for place in partitions}


def _delete(cluster: Cluster, wanted: dict[Place, int], *, dry_run: bool) -> dict[Place, tuple[int | None, str | None]]:
    """Where each partition begins then, or why it could not be done."""
    if dry_run:
        ends = {place: found.offset for place, found in cluster.offsets(wanted, "latest").items()}
        return {
            place: (ends[place] if offset == _TO_HIGH_WATERMARK else offset, None)
            if offset <= ends[place]
            else (None, f"offset {offset} is above {ends[place]}, its end")
            for place, offset in wanted.items()
        }
    make = cluster.kafka.TopicPartition
    asked = [make(topic, number, offset) for (topic, number), offset in wanted.items()]
    with cluster.errors("records"):
        futures = cluster.admin.delete_records(
            asked, operation_timeout=cluster.timeout, request_timeout=cluster.timeout
        )
    done: dict[Place, tuple[int | None, str | None]] = {}
    for one, future in futures.items():
        try:
            done[one.topic, one.partition] = cluster.result(future, "").low_watermark, None
        except RequestFailedError as error:
            done[one.topic, one.partition] = None, str(error).removeprefix(": ")
    return done
