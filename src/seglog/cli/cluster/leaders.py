"""`seglog leaders elect`: elect leaders on request, as kafka-leader-election."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from seglog.cli.cluster.requests import DEFAULT_CLUSTER, ClusterOptions, ClusterRequests
from seglog.cli.options import JsonLines, ShowOnly, Yes, check_choice, confirm, with_options
from seglog.cli.output import FINE, Out, fail, show_table
from seglog.cli.wire.partition_lists import named_partitions, read_partitions
from seglog.cluster.reassignment_plan import Place

_KINDS: Final = ("preferred", "unclean")


@with_options
def elect(
    places: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOPIC[:0,2-4]]...", help="Topics or partitions.", show_default=False),
    ] = None,
    everything: Annotated[bool, typer.Option("--all-topic-partitions", "--all", "-a", help="All partitions.")] = False,
    file: Annotated[
        str | None,
        typer.Option("--path-to-json-file", metavar="FILE", help="Partitions, in Kafka's form.", show_default=False),
    ] = None,
    kind: Annotated[
        str,
        typer.Option(
            "--election-type",
            metavar="|".join(_KINDS),
            help="preferred: the first replica, if it is in sync. unclean: any replica, if there is no leader; records "
            "that it lacks are lost.",
        ),
    ] = "preferred",
    yes: Yes = False,
    dry_run: ShowOnly = False,
    where: ClusterOptions = DEFAULT_CLUSTER,
    json: JsonLines = False,
) -> int:
    """Elect the preferred replicas, or any replica for partitions without a leader."""
    kind = check_choice("--election-type", kind.lower(), _KINDS)
    if bool(places) + everything + (file is not None) != 1:
        return fail("leaders elect needs topics, --all-topic-partitions or --path-to-json-file")
    cluster = where.requests()
    wanted = None if everything else list(read_partitions(file, None)) if file else _named(cluster, places or [])
    unclean = kind == "unclean"
    if dry_run:
        return _show_candidates(cluster, wanted, unclean=unclean, json=json)
    if unclean:
        confirm("Elect replicas that may lack records? Records that they lack are lost.", yes=yes)
    answers = cluster.once(lambda admin: admin.elect(wanted, unclean=unclean))
    leaders = {one.place: one.leader for one in cluster.look(closely=False).partitions}
    code = FINE
    rows: list[tuple[object, ...]] = []
    with Out() as out:
        for place, (outcome, reason) in sorted(answers.items()):
            if outcome == "failed":
                code = fail(f"topic {place[0]}, partition {place[1]}: {reason}")
            leader = leaders.get(place)
            if json:
                document = {"topic": place[0], "partition": place[1], "outcome": outcome, "leader": leader}
                out.json({**document, "error": reason if outcome == "failed" else None})
            elif outcome != "failed":
                rows.append((*place, outcome, "none" if leader is None else leader))
        if rows:
            show_table(out, ("topic", "partition", "outcome", "leader"), rows, right=("partition", "leader"))
        elif not json and code == FINE:
            out.line("no partition needs an election")
    return code


def _show_candidates(cluster: ClusterRequests, wanted: list[Place] | None, *, unclean: bool, json: bool) -> int:
    """Print the partitions that need this election, and the replicas of which the controller would choose."""
    rows: list[tuple[object, ...]] = []
    with Out() as out:
        for one in cluster.look(closely=False).partitions:
            first = one.replicas[0] if one.replicas else None
            is_needed = one.leader is None if unclean else first in one.isr and one.leader != first
            if not is_needed or (wanted is not None and one.place not in wanted):
                continue
            candidates = one.replicas if unclean else one.replicas[:1]
            if json:
                document = {"topic": one.topic, "partition": one.number, "outcome": "none", "leader": one.leader}
                out.json({**document, "candidates": list(candidates), "error": None})
            else:
                leader = "none" if one.leader is None else one.leader
                rows.append((*one.place, leader, ", ".join(map(str, candidates))))
        if rows:
            show_table(out, ("topic", "partition", "leader", "would lead"), rows, right=("partition", "leader"))
        elif not json:
            out.line("no partition needs an election")
    return FINE


def _named(cluster: ClusterRequests, places: list[str]) -> list[Place]:
    seen = cluster.look(closely=False)
    there: dict[str, list[int]] = {}
    for one in seen.partitions:
        there.setdefault(one.topic, []).append(one.number)
    return named_partitions(there, places, "TOPIC")
