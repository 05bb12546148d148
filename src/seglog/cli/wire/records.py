"""`seglog records delete`: delete the records of partitions before an offset, as kafka-delete-records does."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import typer

from seglog.cli.options import JsonLines, OptionError, ShowOnly, Yes, confirm, parse_time, with_options
from seglog.cli.output import FINE, Out, fail, name_all, show_table
from seglog.cli.wire.clients import DEFAULT_BROKERS, Brokers, Cluster
from seglog.cli.wire.partition_lists import named_partitions, read_partitions
from seglog.cluster.reassignment_plan import Place
from seglog.core.errors import RequestFailedError

_TO_HIGH_WATERMARK: Final = -1


@with_options
def delete(
    places: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOPIC[:0,2-4]]...", help="Topics or partitions.", show_default=False),
    ] = None,
    before: Annotated[
        str | None,
        typer.Option(
            "--before",
            metavar="WHERE",
            help="An offset; end for all committed records; or @TIME: ms since 1970, ISO 8601, or @-7d.",
            show_default=False,
        ),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(
            "--offset-json-file", metavar="FILE", help="Partitions and offsets, in Kafka's form.", show_default=False
        ),
    ] = None,
    yes: Yes = False,
    dry_run: ShowOnly = False,
    brokers: Brokers = DEFAULT_BROKERS,
    json: JsonLines = False,
) -> int:
    """Delete the records before an offset, for good. Disk space becomes free when whole segments are deleted."""
    if (file is None) == (not places) or (file is None) == (before is None):
        return fail("records delete needs topics with --before, or --offset-json-file")
    cluster = brokers.cluster()
    wanted = _of_file(file) if file is not None else _before(cluster, places or (), before or "")
    starts = cluster.first(wanted)
    if wanted and not dry_run:
        named = name_all("partition", [f"{topic}-{number}" for topic, number in wanted])
        confirm(f"Delete the records of {named} before {before or 'the offsets of the file'}?", yes=yes)
    code = FINE
    rows: list[tuple[object, ...]] = []
    with Out() as out:
        for place, (mark, reason) in _delete(cluster, wanted, dry_run=dry_run).items():
            if reason is not None:
                code = fail(f"topic {place[0]}, partition {place[1]}: {reason}")
            if json:
                document = {"topic": place[0], "partition": place[1], "before": starts[place], "lowWatermark": mark}
                out.json({**document, "done": reason is None and not dry_run, "error": reason})
            elif reason is None:
                rows.append((*place, starts[place], mark, max(0, (mark or 0) - starts[place])))
        if rows:
            now = "would begin at" if dry_run else "begins at"
            columns = ("topic", "partition", "began at", now, "records at most")
            show_table(out, columns, rows, right=columns[1:])
    return code


def _of_file(path: str) -> dict[Place, int]:
    wanted: dict[Place, int] = {}
    for place, offset in read_partitions(path, "offset").items():
        if type(offset) is not int or offset < _TO_HIGH_WATERMARK:
            raise OptionError(f"{path}: {place[0]}-{place[1]}: {offset!r} is neither an offset nor -1 for the end")
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
        time = parse_time(where[1:])
    except ValueError:
        raise OptionError(f"--before must be an offset, end or @TIME, not {where}") from None
    found = cluster.offsets(partitions, time)
    return {place: found[place].offset if found[place].offset >= 0 else _TO_HIGH_WATERMARK for place in partitions}


def _delete(
    cluster: Cluster, wanted: Mapping[Place, int], *, dry_run: bool
) -> dict[Place, tuple[int | None, str | None]]:
    """Each partition's new first offset, or the reason why it keeps the old one."""
    done: dict[Place, tuple[int | None, str | None]] = {}
    if dry_run:
        ends = cluster.ends(wanted)
        for place, offset in wanted.items():
            if offset > ends[place]:
                done[place] = None, f"offset {offset} is above the end, {ends[place]}"
            else:
                done[place] = ends[place] if offset == _TO_HIGH_WATERMARK else offset, None
        return done
    make = cluster.kafka.TopicPartition
    asked = [make(topic, number, offset) for (topic, number), offset in wanted.items()]
    futures = cluster.ask("delete_records", "records", asked, operation_timeout=cluster.timeout)
    for one, future in futures.items():
        try:
            done[one.topic, one.partition] = cluster.result(future, "").low_watermark, None
        except RequestFailedError as error:
            done[one.topic, one.partition] = None, str(error).removeprefix(": ")
    return done
