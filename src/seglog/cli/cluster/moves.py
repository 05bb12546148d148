"""`seglog cluster add-broker|remove-broker|replace-disk|set-replicas`: each ends when the work is done.

They move replicas by Kafka's own protocol (KIP-455), so they also work with a cluster of Kafka. A move continues
without the command; started again, the command resumes it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import typer

from seglog.cli.cluster.requests import DEFAULT_CLUSTER, ClusterOptions, ClusterRequests, pause
from seglog.cli.options import JsonLines, with_options
from seglog.cli.output import FAILED, FINE, Out, fail, format_size, warn
from seglog.cluster.health import ClusterStatus, PartitionStatus
from seglog.cluster.reassignment_plan import Place, ReplicaMove, evacuate, resize, spread
from seglog.core.topic_names import OFFSETS_TOPIC, TRANSACTION_TOPIC

_PATIENCE: Final = 20
"""Checks of a partition that is neither moving nor moved, before its move has failed: brokers' views may be late."""
_ROUNDS: Final = 10

_AtOnce = Annotated[int, typer.Option("--at-once", metavar="N", min=1, help="Partitions to move at a time.")]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the moves and change nothing.")]


@with_options
def add_broker(
    nodes: Annotated[
        list[int] | None,
        typer.Argument(metavar="[ID]...", help="Brokers; by default all without replicas.", show_default=False),
    ] = None,
    at_once: _AtOnce = 50,
    dry_run: _DryRun = False,
    where: ClusterOptions = DEFAULT_CLUSTER,
    json: JsonLines = False,
) -> int:
    """Move a share of partitions and leaders to brokers that were started; other replicas stay."""
    cluster, report = where.requests(), MoveReport(as_json=json)
    seen = cluster.look(closely=False)
    used = {node for one in seen.partitions for node in replicas_after(one)}
    new = sorted(nodes or set(seen.brokers) - used)
    missing = [node for node in new if node not in seen.brokers]
    if missing:
        return fail(
            f"broker {missing[0]} is not running: start it first (seglog serve --cluster … --node-id {missing[0]})"
        )
    if not new:
        return fail("all brokers have partitions: name the brokers that get more")
    moves = _begun(seen, new) + spread(_targets(seen), _racks(seen), new)
    code = _carry_out(cluster, moves, at_once, report, dry_run=dry_run)
    if code == FINE and not dry_run:
        names = ", ".join(map(str, new))
        report.done(f"broker {names} has its share: {len(moves)} partitions changed", node=new, moved=len(moves))
    return code


@with_options
def remove_broker(
    node: Annotated[int, typer.Argument(metavar="ID", help="The broker, running or not.")],
    at_once: _AtOnce = 50,
    dry_run: _DryRun = False,
    where: ClusterOptions = DEFAULT_CLUSTER,
    json: JsonLines = False,
) -> int:
    """Move all replicas off a broker, so that it can be stopped."""
    cluster, report = where.requests(), MoveReport(as_json=json)
    moved = 0
    for _ in range(_ROUNDS):  # new topics may place replicas on the broker meanwhile
        seen = cluster.look(closely=False)
        begun = [
            ReplicaMove(one.place, one.replicas, replicas_after(one))
            for one in seen.partitions
            if node in one.removing and node not in replicas_after(one)
        ]
        moves = begun + evacuate(_targets(seen), _racks(seen), node)
        if not moves:
            report.done(_emptied(node, moved, is_there=node in seen.brokers), node=[node], moved=moved)
            return FINE
        code = _carry_out(cluster, moves, at_once, report, dry_run=dry_run)
        if code != FINE or dry_run:
            return code
        moved += len(moves)
    return fail(f"broker {node} keeps getting new replicas: does a program create topics?")


def _emptied(node: int, moved: int, *, is_there: bool) -> str:
    if is_there:
        return f"broker {node} has no replicas: it can be stopped"
    if moved:
        return f"broker {node} has no replicas and is not running: it need not return"
    return f"broker {node} is not running, and no partition has a replica on it"


@with_options
def replace_disk(
    node: Annotated[int, typer.Argument(metavar="ID", help="The broker whose disk was replaced.")],
    directory: Annotated[
        str | None,
        typer.Option("--dir", metavar="DIR", help="Only the replicas in this log directory.", show_default=False),
    ] = None,
    where: ClusterOptions = DEFAULT_CLUSTER,
    json: JsonLines = False,
) -> int:
    """Wait until all replicas of a broker with an empty disk are in sync."""
    cluster, report = where.requests(), MoveReport(as_json=json)
    is_warned = False
    while True:
        seen = cluster.look()
        own = [one for one in seen.partitions if node in one.replicas and node not in one.removing]
        if not own and node not in seen.brokers:
            return fail(f"broker {node} is not running, and no partition has a replica on it")
        broker = seen.brokers.get(node)
        if broker is None or not broker.answers:
            if not is_warned:
                warn(f"seglog: broker {node} is not running: start it with its empty disk; waiting")
                is_warned = True
            pause()
            continue
        if directory is not None:
            found = {one.path: one for one in cluster.patiently(lambda admin: admin.directories(node))}
            if directory not in found:
                return fail(f"broker {node} has no log directory {directory}: it has {', '.join(sorted(found))}")
            if found[directory].error is not None:
                return fail(f"broker {node}: {directory}: {found[directory].error}: replace the disk and restart")
            own = [one for one in own if one.place in found[directory].sizes]
        behind = [one for one in own if node not in one.isr]
        left = sum(one.lag_bytes(node) or 0 for one in behind)
        report.progress("in sync", len(own) - len(behind), len(own), left)
        if not behind:
            report.done(f"broker {node} has all its {len(own)} replicas in sync", node=[node], replicas=len(own))
            return FINE
        pause()


@with_options
def set_replicas(
    factor: Annotated[int, typer.Argument(metavar="N", min=1, help="The number of replicas of each partition.")],
    topics: Annotated[list[str] | None, typer.Argument(metavar="[TOPIC]...", show_default=False)] = None,
    pattern: Annotated[
        str | None,
        typer.Option("--pattern", metavar="REGEX", help="All topics whose whole name matches.", show_default=False),
    ] = None,
    all_internal: Annotated[
        bool, typer.Option("--all-internal", help="__consumer_offsets and __transaction_state.")
    ] = False,
    at_once: _AtOnce = 50,
    dry_run: _DryRun = False,
    where: ClusterOptions = DEFAULT_CLUSTER,
    json: JsonLines = False,
) -> int:
    """Give all partitions of topics another number of replicas, and wait until that is done.

    The plan is printed first; --dry-run only prints it.
    """
    if not topics and pattern is None and not all_internal:
        return fail("name topics, or use --pattern or --all-internal")
    try:
        wanted = re.compile(pattern) if pattern is not None else None
    except re.error as error:
        return fail(f"--pattern {pattern} is not a regular expression: {error}")
    cluster, report = where.requests(), MoveReport(as_json=json)
    seen = cluster.look(closely=False)
    there = {one.topic for one in seen.partitions}
    chosen = {one for one in there if wanted is not None and wanted.fullmatch(one)}
    chosen |= there & {OFFSETS_TOPIC, TRANSACTION_TOPIC} if all_internal else set()
    missing = set(topics or ()) - there
    if missing:
        return fail(f"topic {min(missing)} does not exist")
    chosen |= set(topics or ())
    if not chosen:
        return fail(f"no topic matches {pattern}" if pattern is not None else "there is no internal topic yet")
    partitions = {one.place: one for one in seen.partitions if one.topic in chosen}
    moves = resize(
        _targets(seen), _racks(seen), factor, of=partitions, in_sync={at: one.isr for at, one in partitions.items()}
    )
    planned = {move.place for move in moves}
    begun = [
        ReplicaMove(at, one.replicas, replicas_after(one))
        for at, one in partitions.items()
        if (one.adding or one.removing) and at not in planned
    ]
    for move in () if dry_run else moves:
        report.move(move)
    code = _carry_out(cluster, begun + moves, at_once, report, dry_run=dry_run)
    if code == FINE and not dry_run:
        names = ", ".join(sorted(chosen))
        what = "replica" if factor == 1 else "replicas"
        report.done(
            f"{names}: {factor} {what} of each partition, {len(moves)} partitions changed",
            topics=sorted(chosen),
            replicas=factor,
            moved=len(moves),
        )
    return code


class MoveReport:
    """Prints the progress of moves when it changes."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._last: tuple[object, ...] = ()

    def progress(self, what: str, done: int, total: int, left: int) -> None:
        """``left``: bytes to copy."""
        if (what, done, total, left) == self._last:
            return
        self._last = (what, done, total, left)
        self._say(
            f"{done} of {total} partitions {what}, {format_size(left)} left",
            {"done": done, "total": total, "bytesLeft": left},
        )

    def move(self, move: ReplicaMove) -> None:
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


def _carry_out(
    cluster: ClusterRequests, moves: Sequence[ReplicaMove], at_once: int, report: MoveReport, *, dry_run: bool
) -> int:
    """Run the moves, a limited number at a time, and elect the preferred leaders."""
    if dry_run:
        for move in moves:
            report.move(move)
        return FINE
    failed = run_moves(cluster, moves, at_once, report)
    there = cluster.patiently(lambda admin: admin.racks())
    changed = [move.place for move in moves if move.place not in failed and move.after[0] in there]
    for (topic, number), reason in cluster.patiently(lambda admin: admin.elect_preferred(changed)).items():
        warn(f"seglog: {topic}-{number}: the preferred leader was not elected: {reason}")
    return fail_partitions(failed)


def run_moves(
    cluster: ClusterRequests, moves: Sequence[ReplicaMove], at_once: int, report: MoveReport, *, wait: bool = True
) -> dict[Place, str]:
    """Reassign partitions, at most ``at_once`` at a time, and wait for them; returns the reasons of failures."""
    waiting, running, done = list(moves), dict[Place, ReplicaMove](), 0
    puzzled: dict[Place, int] = {}
    failed: dict[Place, str] = {}
    while waiting or running:
        batch, waiting = waiting[: at_once - len(running)], waiting[max(at_once - len(running), 0) :]
        if batch:
            refused = _reassign(cluster, batch)
            failed |= refused
            running |= {move.place: move for move in batch if move.place not in refused}
        if not wait:
            return failed
        seen = cluster.look({topic for topic, _ in running})
        now = {one.place: one for one in seen.partitions}
        for place, move in list(running.items()):
            state = move_state(now.get(place), move.after)
            puzzled[place] = puzzled.get(place, 0) + 1 if state == "elsewhere" else 0
            if state == "done":
                done += 1
            elif puzzled[place] > _PATIENCE:
                failed[place] = "its move was cancelled or replaced by another one"
            if state == "done" or place in failed:
                del running[place]
        left = sum(one.lag_bytes(node) or 0 for one in now.values() if one.place in running for node in one.adding)
        report.progress("moved", done, len(moves), left)
        if running:
            pause()
    return failed


def _reassign(cluster: ClusterRequests, moves: Sequence[ReplicaMove]) -> dict[Place, str]:
    return cluster.patiently(lambda admin: admin.reassign(moves))


def fail_partitions(reasons: Mapping[Place, str]) -> int:
    """Print each partition's failure; returns the exit code."""
    for (topic, number), reason in reasons.items():
        fail(f"topic {topic}, partition {number}: {reason}")
    return FAILED if reasons else FINE


def move_state(one: PartitionStatus | None, after: Sequence[int]) -> str:
    """done, moving or elsewhere. A deleted partition is done."""
    if one is None:
        return "done"
    if one.adding or one.removing:
        return "moving"
    return "done" if one.replicas == tuple(after) else "elsewhere"


def replicas_after(one: PartitionStatus) -> tuple[int, ...]:
    """The replicas of a partition after its current move, if it moves."""
    return tuple(node for node in one.replicas if node not in one.removing)


def _targets(seen: ClusterStatus) -> dict[Place, tuple[int, ...]]:
    return {one.place: replicas_after(one) for one in seen.partitions}


def _racks(seen: ClusterStatus) -> dict[int, str | None]:
    return {node: broker.rack for node, broker in seen.brokers.items()}


def _begun(seen: ClusterStatus, onto: Sequence[int]) -> list[ReplicaMove]:
    """The moves that an earlier run has started."""
    return [
        ReplicaMove(one.place, one.replicas, replicas_after(one))
        for one in seen.partitions
        if set(one.adding) & set(onto)
    ]
