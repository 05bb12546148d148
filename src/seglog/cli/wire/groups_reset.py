"""`seglog groups reset-offsets`: change a group's offsets, in all modes of kafka-consumer-groups."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple

import typer

from seglog.cli.options import JsonLines, OptionError, parse_time, with_options
from seglog.cli.output import FINE, Out, fail, show_table, warn
from seglog.cli.wire.clients import DEFAULT_BROKERS, Brokers, Cluster
from seglog.cli.wire.groups import NO_GROUPS, GroupNames, committed_offsets, describe, group_offsets, state_of
from seglog.cli.wire.partition_lists import check_partitions, named_partitions
from seglog.cluster.reassignment_plan import Place
from seglog.core.clock import SystemClock
from seglog.core.errors import RequestFailedError
from seglog.core.fs import OsFs

_INACTIVE: Final = ("Empty", "Dead")
_DURATION: Final = re.compile(
    r"P(?:(\d+)D)?(?:T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.ASCII | re.IGNORECASE
)


class ResetMode(NamedTuple):
    """The option ``name`` that says where the group continues, and its value."""

    name: str
    value: Any


class ResetPlan(NamedTuple):
    """New offsets of a group, and the offsets that it has committed."""

    group: str
    offsets: Mapping[Place, int]
    committed: Mapping[Place, int]


class ResetOptions(NamedTuple):
    """The options of which exactly one says where a group continues."""

    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the beginning of each partition.")] = False
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end of each partition.")] = False
    to_current: Annotated[bool, typer.Option("--to-current", help="To the committed offset, or to the end.")] = False
    to_offset: Annotated[int | None, typer.Option(metavar="N", help="To this offset.", show_default=False)] = None
    shift_by: Annotated[
        int | None,
        typer.Option(metavar="N", help="By N records forward, or back if N is negative.", show_default=False),
    ] = None
    to_datetime: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="To the first record at or after TIME; in UTC without a zone.", show_default=False
        ),
    ] = None
    by_duration: Annotated[
        str | None,
        typer.Option(metavar="PnDTnHnMnS", help="To the first record after now minus this.", show_default=False),
    ] = None
    from_file: Annotated[
        str | None,
        typer.Option(metavar="CSV", help="[group,]topic,partition,offset, as --export prints.", show_default=False),
    ] = None

    def mode(self) -> ResetMode:
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


_NO_MODE: Final = ResetOptions()


@with_options
def reset_offsets(
    names: GroupNames = NO_GROUPS,
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", "-t", metavar="TOPIC[:0,2-4]", help="This topic, or partitions of it.", show_default=False
        ),
    ] = None,
    all_topics: Annotated[bool, typer.Option("--all-topics", help="All topics with offsets of the group.")] = False,
    to: ResetOptions = _NO_MODE,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the new offsets (the default).")] = False,
    execute: Annotated[bool, typer.Option("--execute", help="Change the offsets.")] = False,
    export: Annotated[bool, typer.Option("--export", help="Print CSV for --from-file.")] = False,
    brokers: Brokers = DEFAULT_BROKERS,
    json: JsonLines = False,
) -> int:
    """Change where groups without members continue. Shows the new offsets; with --execute, commits them."""
    mode = to.mode()
    if execute and dry_run:
        return fail("reset-offsets takes --dry-run or --execute, not both")
    if mode.name != "--from-file" and bool(topics) == all_topics:
        return fail("reset-offsets needs --topic or --all-topics")
    cluster = brokers.cluster()
    wanted = names.found(cluster, "reset-offsets")
    plans = [plan_reset(cluster, group, mode, topics or (), several=len(wanted) > 1) for group in wanted]
    if execute:
        for plan in plans:
            commit_reset(cluster, plan)
    with Out() as out:
        for plan in plans:
            _print(out, plan, done=execute, json=json, export=export, several=len(plans) > 1)
    if not execute and not json and not export:
        warn("nothing was changed: add --execute to commit these offsets")
    return FINE


def _mode(given: Mapping[str, Any]) -> ResetMode:
    chosen = [ResetMode(name, value) for name, value in given.items() if value is not None]
    if len(chosen) != 1:
        raise OptionError(f"reset-offsets needs exactly one of {', '.join(given)}")
    (mode,) = chosen
    if mode.name == "--by-duration":
        return ResetMode(mode.name, parse_duration(mode.value))
    if mode.name == "--to-datetime":
        try:
            return ResetMode(mode.name, parse_time(mode.value))
        except ValueError as error:
            raise OptionError(f"--to-datetime: {mode.value!r} is not a time like 2013-01-01T05:00:00Z") from error
    return mode


def parse_duration(text: str) -> int:
    """A duration in days, hours, minutes and seconds (ISO 8601) as milliseconds.

    >>> parse_duration("P1DT2H"), parse_duration("PT0.5S")
    (93600000, 500)
    """
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()):
        raise OptionError(f"--by-duration: {text!r} is not a duration like P1DT2H30M5S")
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return round((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)


def plan_reset(cluster: Cluster, group: str, mode: ResetMode, topics: Sequence[str], *, several: bool) -> ResetPlan:
    """The new offsets of a group. `RequestFailedError` if it has members."""
    state = state_of(describe(cluster, group))
    if state not in _INACTIVE:
        raise RequestFailedError(f"group {group} is {state}: offsets can be reset only while it has no members")
    committed = committed_offsets(cluster, group)
    if mode.name == "--from-file":
        wanted = _read_csv(mode.value, group, several=several)
        check_partitions(cluster.partitions(dict.fromkeys(topic for topic, _ in wanted)), wanted)
        return ResetPlan(group, _within(cluster, wanted), committed)
    known = cluster.topics()
    where = named_partitions(known, topics, "--topic") if topics else _all(known, committed)
    return ResetPlan(group, _offsets(cluster, where, mode, committed), committed)


def _all(known: Mapping[str, Sequence[int]], committed: Mapping[Place, int]) -> list[Place]:
    topics = dict.fromkeys(topic for topic, _ in committed)
    return [(topic, number) for topic in topics for number in known.get(topic, ())]


def _offsets(
    cluster: Cluster, where: Sequence[Place], mode: ResetMode, committed: Mapping[Place, int]
) -> dict[Place, int]:
    if mode.name == "--to-earliest":
        return cluster.first(where)
    if mode.name == "--to-latest":
        return cluster.ends(where)
    if mode.name == "--to-current":
        ends = cluster.ends(where)
        return {at: committed.get(at, ends[at]) for at in where}
    if mode.name == "--to-offset":
        return _within(cluster, dict.fromkeys(where, mode.value))
    if mode.name == "--shift-by":
        for topic, number in where:
            if (topic, number) not in committed:
                raise RequestFailedError(f"topic {topic}, partition {number}: --shift-by needs a committed offset")
        return _within(cluster, {at: committed[at] + mode.value for at in where})
    time = SystemClock().now_ms() - mode.value if mode.name == "--by-duration" else mode.value
    return cluster.offsets_from(where, time)


def _within(cluster: Cluster, wanted: Mapping[Place, int]) -> dict[Place, int]:
    """Move offsets that are out of range to the nearest end of the partition, with a warning."""
    first, ends = cluster.first(wanted), cluster.ends(wanted)
    found = {}
    for at, offset in wanted.items():
        found[at] = min(max(offset, first[at]), ends[at])
        if found[at] != offset:
            warn(
                f"seglog: {at[0]}-{at[1]}: offset {offset} is out of range {first[at]} to {ends[at]}; using {found[at]}"
            )
    return found


def _read_csv(path: str, group: str, *, several: bool) -> dict[Place, int]:
    """The rows of a file for a group. The column of groups may be missing if there is only one group."""
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


def commit_reset(cluster: Cluster, plan: ResetPlan) -> None:
    """Commit the new offsets of a plan."""
    if not plan.offsets:
        return
    make = cluster.kafka.TopicPartition
    partitions = [make(topic, number, offset) for (topic, number), offset in plan.offsets.items()]
    group_offsets(cluster, "alter_consumer_group_offsets", plan.group, partitions)


def reset_document(plan: ResetPlan, *, done: bool) -> dict[str, object]:
    """``done``: whether the offsets were committed."""
    rows = [
        {"topic": at[0], "partition": at[1], "offset": plan.committed.get(at), "newOffset": offset}
        for at, offset in plan.offsets.items()
    ]
    return {"group": plan.group, "done": done, "partitions": rows}


def _print(out: Out, plan: ResetPlan, *, done: bool, json: bool, export: bool, several: bool) -> None:
    if export:
        for (topic, number), offset in plan.offsets.items():
            out.line(f"{f'{plan.group},' if several else ''}{topic},{number},{offset}")
        return
    if json:
        out.json(reset_document(plan, done=done))
        return
    cells = [(plan.group, *at, plan.committed.get(at, "-"), offset) for at, offset in plan.offsets.items()]
    columns = ("group", "topic", "partition", "offset", "new offset")
    show_table(out, columns, cells, right=("partition", "offset", "new offset"))
