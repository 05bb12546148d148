"""`seglog offsets`: first and last offsets of partitions, or an offset by time, as kafka-get-offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import typer

from seglog.cli.options import ISOLATION_LEVELS, JsonLines, check_choice, parse_time, with_options
from seglog.cli.output import FINE, Out, fail, format_time, show_table
from seglog.cli.wire.clients import DEFAULT_BROKERS, NO_TOPICS, Brokers, TopicNames
from seglog.cli.wire.partition_lists import partition_numbers
from seglog.cluster.reassignment_plan import Place
from seglog.core.topic_names import INTERNAL_TOPICS

_SPECIAL: Final = {
    "latest": "latest",
    "-1": "latest",
    "earliest": "earliest",
    "-2": "earliest",
    "max-timestamp": "max-timestamp",
    "-3": "max-timestamp",
}


@with_options
def offsets(
    names: TopicNames = NO_TOPICS,
    partitions: Annotated[
        list[str] | None,
        typer.Option("--partitions", "--partition", "-p", metavar="0,2-4", help="Only these.", show_default="all"),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(
            metavar="earliest|latest|max-timestamp|TIME",
            help="Also -2, -1, -3. Of a TIME the first record at or after it: "
            "ms since 1970, ISO 8601 (in UTC without a zone), or relative to now: -90s, -15m, -1h, -7d, -2w.",
            show_default="earliest and latest",
        ),
    ] = None,
    isolation_level: Annotated[
        str, typer.Option(metavar="|".join(ISOLATION_LEVELS), help="Which end latest means.")
    ] = ISOLATION_LEVELS[0],
    brokers: Brokers = DEFAULT_BROKERS,
    json: JsonLines = False,
) -> int:
    """Show the first and last offsets of partitions, or the offsets at a time; by default of all topics but internal
    ones."""
    check_choice("--isolation-level", isolation_level, ISOLATION_LEVELS)
    at: str | int | None = None
    if time is not None:
        try:
            at = _SPECIAL[time] if time in _SPECIAL else parse_time(time)
        except ValueError:
            return fail(
                f"--time must be {', '.join(_SPECIAL)}, ms since 1970, a time like 2013-01-01T05:00Z or -1h, not {time}"
            )
    numbers = partition_numbers(partitions, "--partitions")
    cluster = brokers.cluster()
    topics = names.all() or [name for name in cluster.topics() if name not in INTERNAL_TOPICS]
    found = [
        (topic, one)
        for topic, there in cluster.partitions(topics).items()
        for one in there
        if not numbers or one in numbers
    ]
    committed = isolation_level == ISOLATION_LEVELS[1]
    with Out() as out:
        if at is None:
            first, last = cluster.first(found), cluster.offsets(found, "latest", read_committed=committed)
            _print_ranges(out, [(*one, first[one], last[one].offset) for one in found], json=json)
        else:
            _print_offsets(out, found, cluster.offsets(found, at, read_committed=committed), json=json)
    return FINE


def _print_ranges(out: Out, ranges: Sequence[tuple[str, int, int, int]], *, json: bool) -> None:
    if json:
        for topic, number, start, end in ranges:
            out.json({"topic": topic, "partition": number, "earliest": start, "latest": end})
        return
    columns = ("topic", "partition", "earliest", "latest", "records at most")
    show_table(out, columns, [(*one, one[3] - one[2]) for one in ranges], right=columns[1:])


def _print_offsets(out: Out, found: Sequence[Place], answers: Mapping[Place, Any], *, json: bool) -> None:
    rows: list[tuple[object, ...]] = []
    for topic, number in found:
        offset, stamp = answers[topic, number].offset, answers[topic, number].timestamp
        known = None if offset < 0 else offset
        if json:
            document = {"topic": topic, "partition": number, "offset": known}
            out.json({**document, "timestamp": None if stamp < 0 else stamp})
        rows.append((topic, number, "-" if known is None else known, format_time(stamp)))
    if not json:
        show_table(out, ("topic", "partition", "offset", "timestamp"), rows, right=("partition", "offset"))
