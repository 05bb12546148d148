"""`seglog cluster add-broker|remove-broker|replace-disk`: one command each, that ends when it is done.

They move replicas by Kafka's own protocol (KIP-455), so that they serve a cluster of Kafka's too. What they have begun
goes on without them; started again, they take it up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Final

import typer

from seglog.cli.cluster.requests import ANYWHERE, Asking, Where, pause
from seglog.cli.options import with_options
from seglog.cli.output import FAILED, FINE, Out, fail, format_size, warn
from seglog.cli.wire import clients as wire
from seglog.cluster.health import ClusterSeen, PartitionSeen
from seglog.cluster.moves import Move, Place, evacuate, spread

_PATIENCE: Final = 20
"""Looks at a partition that is neither moving nor where it shall be: views of brokers may be late by as much."""
_ROUNDS: Final = 10

_AtOnce = Annotated[int, typer.Option("--at-once", metavar="N", min=1, help="Partitions that move at a time.")]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would move, and change nothing.")]


@with_options
def add_broker(
    nodes: Annotated[
        list[int] | None,
        typer.Argument(metavar="[ID]...", help="Brokers; by default all that have nothing.", show_default=False),
    ] = None,
    at_once: _AtOnce = 50,
    dry_run: _DryRun = False,
    where: Where = ANYWHERE,
    json: wire.Json = False,
) -> int:
    """Give brokers that have been started their share of partitions and leaders; nothing else moves."""
    asking, teller = where.asking(), Teller(as_json=json)
    seen = asking.patiently(lambda admin: admin.look(closely=False))
    used = {node for one in seen.partitions for node in replicas_after(one)}
    new = sorted(nodes or set(seen.brokers) - used)
    missing = [node for node in new if node not in seen.brokers]
    if missing:
        return fail(
            f"broker {missing[0]} is not there: start it first (seglog serve --cluster … --node-id {missing[0]})"
        )
    if not new:
        return fail("all brokers have partitions: name those that are to get more")
    moves = _begun(seen, new) + spread(_targets(seen), _racks(seen), new)
    code = _carry_out(asking, moves, at_once, teller, dry_run=dry_run)
    if code == FINE and not dry_run:
        names = ", ".join(map(str, new))
        teller.done(f"broker {names} has its share: {len(moves)} partitions were changed", node=new, moved=len(moves))
    return code


@with_options
def remove_broker(
    node: Annotated[int, typer.Argument(metavar="ID", help="The broker; it may be gone already.")],
    at_once: _AtOnce = 50,
    dry_run: _DryRun = False,
    where: Where = ANYWHERE,
    json: wire.Json = False,
) -> int:
    """Move all replicas off a broker; then it can be stopped."""
    asking, teller = where.asking(), Teller(as_json=json)
    moved = 0
    for _ in range(_ROUNDS):  # new topics may put replicas on it meanwhile
        seen = asking.patiently(lambda admin: admin.look(closely=False))
        begun = [
            Move(one.place, one.replicas, replicas_after(one))
            for one in seen.partitions
            if node in one.removing and node not in replicas_after(one)
        ]
        moves = begun + evacuate(_targets(seen), _racks(seen), node)
        if not moves:
            teller.done(_emptied(node, moved, is_there=node in seen.brokers), node=[node], moved=moved)
            return FINE
        code = _carry_out(asking, moves, at_once, teller, dry_run=dry_run)
        if code != FINE or dry_run:
            return code
        moved += len(moves)
    return fail(f"broker {node} gets new replicas as fast as they are moved: is a program making topics?")


def _emptied(node: int, moved: int, *, is_there: bool) -> str:
    if is_there:
        return f"broker {node} has no replicas any more: it can be stopped"
    if moved:
        return f"broker {node} has no replicas any more, and is not there: it need not come back"
    return f"there is no broker {node}, and no partition has a replica on it"


@with_options
def replace_disk(
    node: Annotated[int, typer.Argument(metavar="ID", help="The broker whose disk was replaced.")],
    directory: Annotated[
        str | None,
        typer.Option("--dir", metavar="DIR", help="Only what is in this log directory.", show_default=False),
    ] = None,
    where: Where = ANYWHERE,
    json: wire.Json = False,
) -> int:
    """Wait until a broker that has come back empty has all its replicas in sync again."""
    asking, teller = where.asking(), Teller(as_json=json)
    is_warned = False
    while True:
        seen = asking.patiently(lambda admin: admin.look())
        own = [one for one in seen.partitions if node in one.replicas and node not in one.removing]
        if not own and node not in seen.brokers:
            return fail(f"there is no broker {node}, and no partition has a replica on it")
        broker = seen.brokers.get(node)
        if broker is None or not broker.answers:
            if not is_warned:
                warn(f"seglog: broker {node} is not there: start it with its empty disk; waiting")
                is_warned = True
            pause()
            continue
        if directory is not None:
            found = {one.path: one for one in asking.patiently(lambda admin: admin.directories(node))}
            if directory not in found:
                return fail(f"broker {node} has no log directory {directory}: it has {', '.join(sorted(found))}")
            if found[directory].error is not None:
                return fail(f"broker {node}: {directory}: {found[directory].error}: replace the disk, start it again")
            own = [one for one in own if one.place in found[directory].sizes]
        behind = [one for one in own if node not in one.isr]
        left = sum(one.lag_bytes(node) or 0 for one in behind)
        teller.tell("in sync", len(own) - len(behind), len(own), left)
        if not behind:
            teller.done(f"broker {node} has all its {len(own)} replicas in sync", node=[node], replicas=len(own))
            return FINE
        pause()


class Teller:
    """Says how far it is, when that has changed."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._last: tuple[object, ...] = ()

    def tell(self, what: str, done: int, total: int, left: int) -> None:
        """``left``: bytes that are still to be copied."""
        if (what, done, total, left) == self._last:
            return
        self._last = (what, done, total, left)
        self._say(
            f"{done} of {total} partitions {what}, {format_size(left)} left",
            {"done": done, "total": total, "bytesLeft": left},
        )

    def move(self, move: Move) -> None:
        name = f"{move.place[0]}-{move.place[1]}"
        text = f"{name}: {','.join(map(str, move.before))} -> {','.join(map(str, move.after))}"
        self._say(text, {"partition": name, "before": list(move.before), "after": list(move.after)})

    def done(self, text: str, **fields: object) -> None:
        self._say(text, {"finished": True, **fields})

    def _say(self, text: str, document: Mapping[str, object]) -> None:
        out = Out()
        if self._as_json:
            out.json(document)
        else:
            out.line(text)
        out.flush()


def _carry_out(asking: Asking, moves: Sequence[Move], at_once: int, teller: Teller, *, dry_run: bool) -> int:
    """Move, so many at a time, and let those lead who shall."""
    if dry_run:
        for move in moves:
            teller.move(move)
        return FINE
    waiting, running, done = list(moves), dict[Place, Move](), 0
    puzzled: dict[Place, int] = {}
    failed: dict[Place, str] = {}
    while waiting or running:
        batch, waiting = waiting[: at_once - len(running)], waiting[max(at_once - len(running), 0) :]
        if batch:
            refused = _reassign(asking, batch)
            failed |= refused
            running |= {move.place: move for move in batch if move.place not in refused}
        seen = _look(asking, {topic for topic, _ in running})
        for place, move in list(running.items()):
            state = _state(seen, move)
            puzzled[place] = puzzled.get(place, 0) + 1 if state == "elsewhere" else 0
            if state == "done":
                done += 1
            elif puzzled[place] > _PATIENCE:
                failed[place] = "its move was cancelled, or another one begun"
            if state == "done" or place in failed:
                del running[place]
        teller.tell("moved", done, len(moves), _left(seen, running))
        if running:
            pause()
    there = asking.patiently(lambda admin: admin.racks())
    changed = [move.place for move in moves if move.place not in failed and move.after[0] in there]
    for (topic, number), reason in asking.patiently(lambda admin: admin.elect_preferred(changed)).items():
        warn(f"seglog: {topic}-{number} has not the leader that it should have: {reason}")
    for (topic, number), reason in failed.items():
        fail(f"{topic}-{number}: {reason}")
    return FAILED if failed else FINE


def _reassign(asking: Asking, moves: Sequence[Move]) -> dict[Place, str]:
    return asking.patiently(lambda admin: admin.reassign(moves))


def _look(asking: Asking, topics: Collection[str]) -> ClusterSeen:
    return asking.patiently(lambda admin: admin.look(topics))


def _state(seen: ClusterSeen, move: Move) -> str:
    """Of a partition that was told to move: done, moving or elsewhere. One that is gone is done."""
    one = next((one for one in seen.partitions if one.place == move.place), None)
    if one is None:
        return "done"
    if one.adding or one.removing:
        return "moving"
    return "done" if one.replicas == move.after else "elsewhere"


def _left(seen: ClusterSeen, running: Mapping[Place, Move]) -> int:
    """Bytes that the new replicas still lack."""
    return sum(one.lag_bytes(node) or 0 for one in seen.partitions if one.place in running for node in one.adding)


def replicas_after(one: PartitionSeen) -> tuple[int, ...]:
    """Where a partition is to be: after the move that goes on, if there is one."""
    return tuple(node for node in one.replicas if node not in one.removing)


def _targets(seen: ClusterSeen) -> dict[Place, tuple[int, ...]]:
    return {one.place: replicas_after(one) for one in seen.partitions}


def _racks(seen: ClusterSeen) -> dict[int, str | None]:
    return {node: broker.rack for node, broker in seen.brokers.items()}


def _begun(seen: ClusterSeen, onto: Sequence[int]) -> list[Move]:
    """What an earlier run has begun."""
    return [
        Move(one.place, one.replicas, replicas_after(one)) for one in seen.partitions if set(one.adding) & set(onto)
    ]
