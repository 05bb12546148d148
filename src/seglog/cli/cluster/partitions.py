"""`seglog partitions reassign`: replicas onto other brokers by a plan, as kafka-reassign-partitions."""

from __future__ import annotations

import json as documents
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import typer

from seglog.cli.cluster.moves import Teller, replicas_after
from seglog.cli.cluster.requests import ANYWHERE, Asking, Where, pause
from seglog.cli.options import with_options
from seglog.cli.output import FAILED, FINE, Out, fail
from seglog.cli.wire import clients as wire
from seglog.cli.wire.partition_lists import partitions_document, read_partitions
from seglog.cluster.health import ClusterSeen, PartitionSeen
from seglog.cluster.moves import Move, Place
from seglog.core.fs import OsFs, write_atomically

_LATE: Final = 20
"""Looks at a partition that does not move, nor has what was wanted: views of brokers may be late by as much."""


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
    cancel: Annotated[bool, typer.Option("--cancel", help="Put back what is moving; no replicas are named.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Say how far it is, change nothing.")] = False,
    show: Annotated[bool, typer.Option("--list", help="Show what is moving now, change nothing.")] = False,
    save: Annotated[
        str | None,
        typer.Option("--save", metavar="FILE", help="Write first where they are: the way back.", show_default=False),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="End when all are there.")] = True,
    where: Where = ANYWHERE,
    json: wire.Json = False,
) -> int:
    """Move replicas to other brokers: all at once, and wait. Started again with the same plan, it takes it up."""
    if cancel + verify + show > 1:
        return fail("partitions reassign takes one of --cancel, --verify and --list")
    asking = where.asking()
    if show:
        return _show_moves(_look(asking), json=json)
    try:
        wanted = _wanted(given, file, needs_replicas=not cancel)
    except ValueError as error:
        return fail(error)
    seen = _look(asking)
    there = {one.place: one for one in seen.partitions}
    if not wanted and cancel:
        wanted = {one.place: () for one in seen.partitions if one.adding or one.removing}
        if not wanted:
            return _finish(Teller(as_json=json), "nothing is moving", moved=0)
    if not wanted:
        return fail("partitions reassign needs TOPIC-N=1,2,3, or --reassignment-json-file")
    for topic, number in wanted:
        if (topic, number) not in there:
            return fail(f"topic {topic}, partition {number}: there is no such partition")
    if verify:
        return _verify(there, wanted, json=json)
    if save is not None:
        before = {place: {"replicas": list(replicas_after(there[place]))} for place in wanted}
        write_atomically(OsFs(), save, documents.dumps(partitions_document(before), indent=1).encode() + b"\n")
    teller = Teller(as_json=json)
    if cancel:
        return _cancel(asking, list(wanted), teller)
    return _execute(asking, there, wanted, teller, wait=wait)


def _wanted(given: Sequence[str] | None, file: str | None, *, needs_replicas: bool) -> dict[Place, tuple[int, ...]]:
    """Of arguments or of a file; with no replicas where they are not needed. `ValueError`."""
    if given and file is not None:
        raise ValueError("partitions reassign takes partitions or --reassignment-json-file, not both")
    if file is not None:
        field = "replicas" if needs_replicas else None
        read = read_partitions(file, field)
        return {place: _replicas(value, place) if field else () for place, value in read.items()}
    wanted: dict[Place, tuple[int, ...]] = {}
    for text in given or ():
        name, equals, replicas = text.partition("=")
        topic, dash, number = name.rpartition("-")
        if not dash or not number.isdecimal() or bool(equals) < needs_replicas:
            raise ValueError(f"{text!r} is not TOPIC-N{'=1,2,3' if needs_replicas else ''}")
        place = (topic, int(number))
        nodes = [int(one) if one.isdecimal() else one for one in replicas.split(",")] if equals else []
        wanted[place] = _replicas(nodes, place) if needs_replicas else ()
    return wanted


def _replicas(value: object, place: Place) -> tuple[int, ...]:
    if not isinstance(value, list) or not value or any(type(node) is not int or node < 0 for node in value):
        raise ValueError(f"{place[0]}-{place[1]}: {value!r} is not a list of brokers' ids")
    return tuple(value)


def _look(asking: Asking) -> ClusterSeen:
    return asking.patiently(lambda admin: admin.look(closely=False))


def _execute(
    asking: Asking,
    there: Mapping[Place, PartitionSeen],
    wanted: Mapping[Place, tuple[int, ...]],
    teller: Teller,
    *,
    wait: bool,
) -> int:
    moves = [Move(place, there[place].replicas, nodes) for place, nodes in wanted.items()]
    for move in moves:
        teller.move(move)
    failed = asking.once(lambda admin: admin.reassign(moves))
    running = {move.place: move for move in moves if move.place not in failed}
    begun, late = len(running), dict.fromkeys(running, 0)
    while running and wait:
        seen = asking.patiently(lambda admin: admin.look({topic for topic, _ in running}))
        now = {one.place: one for one in seen.partitions}
        left = 0
        for place, move in list(running.items()):
            state = _state(now.get(place), move.after)
            late[place] = late[place] + 1 if state == "elsewhere" else 0
            if late[place] > _LATE:
                failed[place] = "its move was cancelled, or another one begun"
            if state == "done" or place in failed:
                del running[place]
            else:
                left += sum(now[place].lag_bytes(node) or 0 for node in now[place].adding)
        teller.tell("moved", begun - len(running), begun, left)
        if running:
            pause()
    for (topic, number), reason in failed.items():
        fail(f"topic {topic}, partition {number}: {reason}")
    if failed:
        return FAILED
    return _finish(teller, f"{begun} partitions {'are there' if wait else 'begin to move'}", moved=begun)


def _cancel(asking: Asking, places: Sequence[Place], teller: Teller) -> int:
    refused = asking.once(lambda admin: admin.cancel(places))
    for (topic, number), reason in refused.items():
        fail(f"topic {topic}, partition {number}: {reason}")
    done = len(places) - len(refused)
    _finish(teller, f"{done} moves were cancelled", cancelled=done)
    return FAILED if refused else FINE


def _finish(teller: Teller, text: str, **fields: object) -> int:
    teller.done(text, **fields)
    return FINE


def _verify(there: Mapping[Place, PartitionSeen], wanted: Mapping[Place, tuple[int, ...]], *, json: bool) -> int:
    """Exit code 2 as long as one is not there."""
    out, code = Out(), FINE
    for place, nodes in wanted.items():
        state = _state(there.get(place), nodes)
        now = there[place].replicas
        code = code if state == "done" else FAILED
        if json:
            document = {"topic": place[0], "partition": place[1], "state": state}
            out.json({**document, "replicas": list(now), "wanted": list(nodes)})
        else:
            out.line(f"{place[0]}-{place[1]}: {state}, replicas {_text(now)}, wanted {_text(nodes)}")
    out.flush()
    return code


def _show_moves(seen: ClusterSeen, *, json: bool) -> int:
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


def _state(one: PartitionSeen | None, wanted: Sequence[int]) -> str:
    """done, moving or elsewhere; a partition that was deleted is done."""
    if one is None:
        return "done"
    if one.adding or one.removing:
        return "moving"
    return "done" if one.replicas == tuple(wanted) else "elsewhere"


def _text(nodes: Sequence[int]) -> str:
    return ",".join(map(str, nodes))
