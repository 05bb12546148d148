"""`seglog groups reset-offsets`: let a group go on from somewhere else, in all modes of kafka-consumer-groups."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple

import typer

from seglog.cli.options import parse_time, with_options
from seglog.cli.output import FINE, Out, fail, show_table, warn
from seglog.cli.wire import clients as wire
from seglog.cli.wire.clients import Cluster
from seglog.cli.wire.groups import NO_NAMES, Names, committed_offsets, describe, named_partitions, state_of
from seglog.core.clock import SystemClock
from seglog.core.errors import RequestFailedError
from seglog.core.fs import OsFs

_INACTIVE: Final = ("Empty", "Dead")
_DURATION: Final = re.compile(
    r"P(?:(\d+)D)?(?:T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.ASCII | re.IGNORECASE
)
_At = tuple[str, int]


class Mode(NamedTuple):
    """How new offsets are found: by option ``name``, with what was given to it."""

    name: str
    value: Any


class Plan(NamedTuple):
    """New offsets of a group, and the old ones where there are some."""

    group: str
    offsets: Mapping[_At, int]
    committed: Mapping[_At, int]


class To(NamedTuple):
    """The options of which one says where a group goes on."""

    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To where partitions begin.")] = False
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To where they end.")] = False
    to_current: Annotated[bool, typer.Option("--to-current", help="To where the group is, or to the end.")] = False
    to_offset: Annotated[int | None, typer.Option(metavar="N", help="To this offset.", show_default=False)] = None
    shift_by: Annotated[
        int | None, typer.Option(metavar="N", help="By so many on, or back if negative.", show_default=False)
    ] = None
    to_datetime: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="To the first record at or after it; UTC without a zone.", show_default=False
        ),
    ] = None
    by_duration: Annotated[
        str | None, typer.Option(metavar="PnDTnHnMnS", help="To what was so long ago.", show_default=False)
    ] = None
    from_file: Annotated[
        str | None,
        typer.Option(metavar="CSV", help="[group,]topic,partition,offset, as --export has it.", show_default=False),
    ] = None

    def mode(self) -> Mode:
        return _mode(
            {
                "--to-earliest": self.to_earliest or None,
                "--to-latest": self.to_latest or None,
                "--to-current": self.to_current or None,
                "--to-offset": self.to_offset,
                "--shift-by": self.shift_by,
                "--to-datetime": self.to_datetime,
                "--by-duration": self.by_duration,
                "--from-file": self.from_file,
            }
        )


_NOWHERE: Final = To()


@with_options
def reset_offsets(
    names: Names = NO_NAMES,
    topics: Annotated[
        list[str] | None,
        typer.Option("--topic", "-t", metavar="TOPIC[:0,2-4]", help="In this topic.", show_default=False),
    ] = None,
    all_topics: Annotated[bool, typer.Option("--all-topics", help="In all for which the group has offsets.")] = False,
    to: To = _NOWHERE,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be: so it is without --execute.")] = False,
    execute: Annotated[bool, typer.Option("--execute", help="Do it.")] = False,
    export: Annotated[bool, typer.Option("--export", help="Print CSV for --from-file.")] = False,
    brokers: wire.Brokers = wire.DEFAULT_BROKERS,
    json: wire.Json = False,
) -> int:
    """Let groups without members go on from somewhere else. Shows what would be done, and does it with --execute."""
    mode = to.mode()
    if execute and dry_run:
        return fail("reset-offsets takes --dry-run or --execute, not both")
    if mode.name != "--from-file" and bool(topics) == all_topics:
        return fail("reset-offsets needs --topic or --all-topics")
    cluster = brokers.cluster()
    wanted = names.wanted(cluster)
    if not wanted and not names.all_groups:
        return fail("reset-offsets needs the name of a group, or --all-groups")
    plans = [_plan(cluster, group, mode, topics or (), several=len(wanted) > 1) for group in wanted]
    if execute:
        for plan in plans:
            _commit(cluster, plan)
    out = Out()
    for plan in plans:
        _print(out, plan, done=execute, json=json, export=export, several=len(plans) > 1)
    out.flush()
    if not execute and not json and not export:
        warn("nothing was changed: --execute does it")
    return FINE


def _mode(given: Mapping[str, Any]) -> Mode:
    chosen = [Mode(name, value) for name, value in given.items() if value is not None]
    if len(chosen) != 1:
        raise typer.BadParameter(f"reset-offsets needs one of {', '.join(given)}")
    (mode,) = chosen
    if mode.name == "--by-duration":
        return Mode(mode.name, parse_duration(mode.value))
    if mode.name == "--to-datetime":
        try:
            return Mode(mode.name, parse_time(mode.value))
        except ValueError as error:
            raise typer.BadParameter(f"--to-datetime: {mode.value!r} is no time like 2013-01-01T05:00:00Z") from error
    return mode


def parse_duration(text: str) -> int:
    """ISO 8601's days, hours, minutes and seconds as milliseconds.

    >>> parse_duration("P1DT2H"), parse_duration("PT0.5S")
    (93600000, 500)
    """
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()):
        raise typer.BadParameter(f"--by-duration: {text!r} is no duration like P1DT2H30M5S")
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return round((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)


def _plan(cluster: Cluster, group: str, mode: Mode, topics: Sequence[str], *, several: bool) -> Plan:
    state = state_of(describe(cluster, group))
    if state not in _INACTIVE:
        raise RequestFailedError(f"group {group}: offsets are reset while it has no members, and it is {state}")
    committed = committed_offsets(cluster, group)
    if mode.name == "--from-file":
        wanted = _read_csv(mode.value, group, several=several)
        known = cluster.partitions(dict.fromkeys(topic for topic, _ in wanted))
        for topic, number in wanted:
            if number not in known[topic]:
                raise RequestFailedError(f"{mode.value}: topic {topic} has no partition {number}")
        return Plan(group, _within(cluster, wanted), committed)
    where = named_partitions(cluster, topics) if topics else _all(cluster, committed)
    return Plan(group, _offsets(cluster, where, mode, committed), committed)


def _all(cluster: Cluster, committed: Mapping[_At, int]) -> list[_At]:
    known = cluster.topics()
    topics = dict.fromkeys(topic for topic, _ in committed)
    return [(topic, number) for topic in topics for number in known.get(topic, ())]


def _offsets(cluster: Cluster, where: Sequence[_At], mode: Mode, committed: Mapping[_At, int]) -> dict[_At, int]:
    if mode.name == "--to-earliest":
        return {at: found.offset for at, found in cluster.offsets(where, "earliest").items()}
    ends = {at: found.offset for at, found in cluster.offsets(where, "latest").items()}
    if mode.name == "--to-latest":
        return ends
    if mode.name == "--to-current":
        return {at: committed.get(at, ends[at]) for at in where}
    if mode.name == "--to-offset":
        return _within(cluster, dict.fromkeys(where, mode.value))
    if mode.name == "--shift-by":
        for topic, number in where:
            if (topic, number) not in committed:
                raise RequestFailedError(f"topic {topic}, partition {number}: no offset is committed, to be shifted")
        return _within(cluster, {at: committed[at] + mode.value for at in where})
    time = SystemClock().now_ms() - mode.value if mode.name == "--by-duration" else mode.value
    found = cluster.offsets(where, time)
    return {at: found[at].offset if found[at].offset >= 0 else ends[at] for at in where}


def _within(cluster: Cluster, wanted: Mapping[_At, int]) -> dict[_At, int]:
    """Offsets that are there: the nearest, and a warning, for others."""
    first, last = cluster.offsets(wanted, "earliest"), cluster.offsets(wanted, "latest")
    found = {}
    for at, offset in wanted.items():
        found[at] = min(max(offset, first[at].offset), last[at].offset)
        if found[at] != offset:
            warn(
                f"seglog: {at[0]}-{at[1]} has {first[at].offset} to {last[at].offset}: {found[at]} instead of {offset}"
            )
    return found


def _read_csv(path: str, group: str, *, several: bool) -> dict[_At, int]:
    """A file's rows for a group; its column is left out where there is one group."""
    found = {}
    for number, line in enumerate(OsFs().read(path).decode(errors="replace").splitlines(), start=1):
        if not line.strip():
            continue
        cells = [cell.strip().strip('"') for cell in line.split(",")]
        if len(cells) == 4 and cells[0] != group:
            continue
        if len(cells) not in ((4,) if several else (3, 4)) or not (cells[-1].isdecimal() and cells[-2].isdecimal()):
            shape = "group,topic,partition,offset" if several else "topic,partition,offset"
            raise RequestFailedError(f"{path}, line {number}: {line!r} is not {shape}")
        found[cells[-3], int(cells[-2])] = int(cells[-1])
    return found


def _commit(cluster: Cluster, plan: Plan) -> None:
    if not plan.offsets:
        return
    kafka = cluster.kafka
    partitions = [kafka.TopicPartition(topic, number, offset) for (topic, number), offset in plan.offsets.items()]
    wanted = kafka.ConsumerGroupTopicPartitions(plan.group, partitions)
    with cluster.errors(f"group {plan.group}"):
        futures = cluster.admin.alter_consumer_group_offsets([wanted], request_timeout=cluster.timeout)
    answer = cluster.result(futures[plan.group], f"group {plan.group}")
    for one in answer.topic_partitions:
        if one.error is not None:
            raise RequestFailedError(f"group {plan.group}, {one.topic}-{one.partition}: {cluster.describe(one.error)}")


def _print(out: Out, plan: Plan, *, done: bool, json: bool, export: bool, several: bool) -> None:
    if export:
        for (topic, number), offset in plan.offsets.items():
            out.line(f"{f'{plan.group},' if several else ''}{topic},{number},{offset}")
        return
    if json:
        rows = [
            {"topic": at[0], "partition": at[1], "offset": plan.committed.get(at), "newOffset": offset}
            for at, offset in plan.offsets.items()
        ]
        out.json({"group": plan.group, "done": done, "partitions": rows})
        return
    cells = [(plan.group, *at, plan.committed.get(at, "-"), offset) for at, offset in plan.offsets.items()]
    columns = ("group", "topic", "partition", "offset", "new offset")
    show_table(out, columns, cells, right=("partition", "offset", "new offset"))
