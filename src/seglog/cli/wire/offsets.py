"""`seglog offsets`: where partitions begin and end, or an offset by time, as kafka-get-offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple

import typer

from seglog.cli.options import parse_time, with_options
from seglog.cli.output import FINE, Out, fail, format_time, show_table
from seglog.cli.wire import clients as wire
from seglog.cli.wire.clients import Cluster

_SPECIAL: Final = {"latest": "latest", "-1": "latest", "earliest": "earliest", "-2": "earliest"} | {
    "max-timestamp": "max-timestamp",
    "-3": "max-timestamp",
}
_At = tuple[str, int]
"""A topic's partition."""


class Which(NamedTuple):
    """The partitions that are meant."""

    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOPIC]...", help="Topics.", show_default="all but Kafka's own"),
    ] = None
    topics: wire.TopicsToo = None
    partitions: Annotated[
        list[str] | None,
        typer.Option("--partitions", "--partition", "-p", metavar="0,2-4", help="Only these.", show_default="all"),
    ] = None

    def found(self, cluster: Cluster) -> list[_At]:
        numbers = wire.numbers(self.partitions, "--partitions")
        topics = _topics(cluster, [*(self.names or ()), *(self.topics or ())])
        return [(topic, one) for topic, there in topics.items() for one in there if not numbers or one in numbers]


_ALL: Final = Which()


@with_options
def offsets(
    which: Which = _ALL,
    time: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            help="earliest, latest, max-timestamp (or -2, -1, -3), or the first record at or after a time: "
            "ms since 1970, ISO 8601 (in UTC without a zone), or so long ago: -90s, -15m, -1h, -7d, -2w.",
            show_default="earliest and latest",
        ),
    ] = None,
    isolation_level: Annotated[
        str, typer.Option(metavar="LEVEL", help="latest is read_uncommitted, or read_committed.")
    ] = "read_uncommitted",
    brokers: wire.Brokers = wire.DEFAULT_BROKERS,
    json: wire.Json = False,
) -> int:
    """Offsets of partitions: where they begin and end, or what is there at a time."""
    if isolation_level not in ("read_uncommitted", "read_committed"):
        return fail(f"--isolation-level is read_uncommitted or read_committed, not {isolation_level}")
    at: str | int | None = None
    if time is not None:
        try:
            at = _SPECIAL[time] if time in _SPECIAL else parse_time(time)
        except ValueError:
            return fail(
                f"--time is {', '.join(_SPECIAL)}, ms since 1970, a time like 2013-01-01T05:00Z or -1h, not {time}"
            )
    cluster = brokers.cluster()
    found = which.found(cluster)
    committed = isolation_level == "read_committed"
    out = Out()
    if at is None:
        first, last = cluster.offsets(found, "earliest"), cluster.offsets(found, "latest", read_committed=committed)
        _print_ranges(out, [(*one, first[one].offset, last[one].offset) for one in found], json=json)
    else:
        _print_answers(out, found, cluster.offsets(found, at, read_committed=committed), json=json)
    out.flush()
    return FINE


def _print_ranges(out: Out, ranges: Sequence[tuple[str, int, int, int]], *, json: bool) -> None:
    if json:
        for topic, number, start, end in ranges:
            out.json({"topic": topic, "partition": number, "earliest": start, "latest": end})
        return
    columns = ("topic", "partition", "earliest", "latest", "records at most")
    show_table(out, columns, [(*one, one[3] - one[2]) for one in ranges], right=columns[1:])


def _print_answers(out: Out, found: Sequence[_At], answers: Mapping[_At, Any], *, json: bool) -> None:
    for one in found if json else ():
        offset, stamp = answers[one].offset, answers[one].timestamp
        out.json(
            {
                "topic": one[0],
                "partition": one[1],
                "offset": None if offset < 0 else offset,
                "timestamp": None if stamp < 0 else stamp,
            }
        )
    if not json:
        rows = [
            (*one, "-" if answers[one].offset < 0 else answers[one].offset, format_time(answers[one].timestamp))
            for one in found
        ]
        show_table(out, ("topic", "partition", "offset", "timestamp"), rows, right=("partition", "offset"))


def _topics(cluster: Cluster, names: list[str]) -> dict[str, list[int]]:
    if names:
        return cluster.partitions(names)
    return {name: there for name, there in cluster.topics().items() if name not in wire.INTERNAL}
