"""`seglog partitions reassign`: move replicas to other brokers by a plan, as kafka-reassign-partitions."""

from __future__ import annotations

import json as documents
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from seglog.cli.cluster.moves import MoveReport, fail_partitions, move_state, replicas_after, run_moves
from seglog.cli.cluster.requests import DEFAULT_CLUSTER, ClusterOptions, ClusterRequests
from seglog.cli.options import JsonLines, OptionError, with_options
from seglog.cli.output import FAILED, FINE, Out, fail
from seglog.cli.wire.partition_lists import partitions_document, read_partitions
from seglog.cluster.health import ClusterStatus, PartitionStatus
from seglog.cluster.reassignment_plan import Place, ReplicaMove
from seglog.core.fs import OsFs, write_atomically


@with_options
def reassign(
    given: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOPIC-N=1,2,3]...", help="Partitions and their replicas.", show_default=False),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(
            "--reassignment-json-file", "-f", metavar="FILE", help="The same in Kafka's form.", show_default=False
        ),
    ] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel the moves; name no replicas.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Show the progress and change nothing.")] = False,
    show: Annotated[bool, typer.Option("--list", help="Show the current moves and change nothing.")] = False,
    save: Annotated[
        str | None,
        typer.Option("--save", metavar="FILE", help="First save the current replicas.", show_default=False),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until all are moved.")] = True,
    where: ClusterOptions = DEFAULT_CLUSTER,
    json: JsonLines = False,
) -> int:
    """Move replicas to other brokers, all at once, and wait. Started again with the same plan, it resumes the moves."""
    if cancel + verify + show > 1:
        return fail("partitions reassign takes only one of --cancel, --verify and --list")
    cluster = where.requests()
    if show:
        return _show_moves(cluster.look(closely=False), json=json)
    wanted = _wanted(given, file, needs_replicas=not cancel)
    seen = cluster.look(closely=False)
    there = {one.place: one for one in seen.partitions}
    if not wanted and cancel:
        wanted = {one.place: () for one in seen.partitions if one.adding or one.removing}
        if not wanted:
            MoveReport(as_json=json).done("nothing is moving", moved=0)
            return FINE
    if not wanted:
        return fail("partitions reassign needs TOPIC-N=1,2,3, or --reassignment-json-file")
    for topic, number in wanted:
        if (topic, number) not in there:
            return fail(f"partition {topic}-{number} does not exist")
    if verify:
        return _verify(there, wanted, json=json)
    if save is not None:
        before = {place: {"replicas": list(replicas_after(there[place]))} for place in wanted}
        write_atomically(OsFs(), save, documents.dumps(partitions_document(before), indent=1).encode() + b"\n")
    report = MoveReport(as_json=json)
    if cancel:
        return _cancel(cluster, list(wanted), report)
    return _execute(cluster, there, wanted, report, wait=wait)


def _wanted(given: Sequence[str] | None, file: str | None, *, needs_replicas: bool) -> dict[Place, tuple[int, ...]]:
    """Partitions and replicas of the arguments or of the file. Raises `OptionError`."""
    if given and file is not None:
        raise OptionError("partitions reassign takes partitions or --reassignment-json-file, not both")
    if file is not None:
        field = "replicas" if needs_replicas else None
        read = read_partitions(file, field)
        return {place: _replicas(value, place) if field else () for place, value in read.items()}
    wanted: dict[Place, tuple[int, ...]] = {}
    for text in given or ():
        name, equals, replicas = text.partition("=")
        topic, dash, number = name.rpartition("-")
        if not dash or not number.isdecimal() or bool(equals) < needs_replicas:
            raise OptionError(f"{text!r} is not TOPIC-N{'=1,2,3' if needs_replicas else ''}")
        place = (topic, int(number))
        nodes = [int(one) if one.isdecimal() else one for one in replicas.split(",")] if equals else []
        wanted[place] = _replicas(nodes, place) if needs_replicas else ()
    return wanted


def _replicas(value: object, place: Place) -> tuple[int, ...]:
    if not isinstance(value, list) or not value or any(type(node) is not int or node < 0 for node in value):
        raise OptionError(f"{place[0]}-{place[1]}: {value!r} is not a list of broker ids")
    return tuple(value)


def _execute(
    cluster: ClusterRequests,
    there: Mapping[Place, PartitionStatus],
    wanted: Mapping[Place, tuple[int, ...]],
    report: MoveReport,
    *,
    wait: bool,
) -> int:
    moves = [ReplicaMove(place, there[place].replicas, nodes) for place, nodes in wanted.items()]
    for move in moves:
        report.move(move)
    failed = run_moves(cluster, moves, len(moves), report, wait=wait)
    if not failed:
        report.done(f"{len(moves)} partitions {'moved' if wait else 'are moving'}", moved=len(moves))
    return fail_partitions(failed)


def _cancel(cluster: ClusterRequests, places: Sequence[Place], report: MoveReport) -> int:
    refused = cluster.once(lambda admin: admin.cancel(places))
    done = len(places) - len(refused)
    report.done(f"{done} moves were cancelled", cancelled=done)
    return fail_partitions(refused)


def _verify(there: Mapping[Place, PartitionStatus], wanted: Mapping[Place, tuple[int, ...]], *, json: bool) -> int:
    """Print each partition's state. The exit code is 2 until all are moved."""
    out, code = Out(), FINE
    for place, nodes in wanted.items():
        state = move_state(there.get(place), nodes)
        now = there[place].replicas
        code = code if state == "done" else FAILED
        if json:
            document = {"topic": place[0], "partition": place[1], "state": state}
            out.json({**document, "replicas": list(now), "wanted": list(nodes)})
        else:
            out.line(f"{place[0]}-{place[1]}: {state}, replicas {_text(now)}, wanted {_text(nodes)}")
    out.flush()
    return code


def _show_moves(seen: ClusterStatus, *, json: bool) -> int:
    out = Out()
    moving = [one for one in seen.partitions if one.adding or one.removing]
    for one in moving:
        if json:
            document = {"topic": one.topic, "partition": one.number, "replicas": list(one.replicas)}
            out.json({**document, "adding": list(one.adding), "removing": list(one.removing)})
        else:
            added, removed = _text(one.adding) or "none", _text(one.removing) or "none"
            out.line(f"{one.topic}-{one.number}: {_text(one.replicas)}, adding {added}, removing {removed}")
    if not moving and not json:
        out.line("nothing is moving")
    out.flush()
    return FINE


def _text(nodes: Sequence[int]) -> str:
    return ",".join(map(str, nodes))
