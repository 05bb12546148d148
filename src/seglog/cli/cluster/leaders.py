"""`seglog leaders elect`: other leaders on request, as kafka-leader-election."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from seglog.cli.cluster.requests import ANYWHERE, Asking, Where
from seglog.cli.options import with_options
from seglog.cli.output import FINE, Out, fail, show_table
from seglog.cli.wire import clients as wire
from seglog.cli.wire.partition_lists import named_partitions, read_partitions
from seglog.cluster.moves import Place

_KINDS: Final = ("preferred", "unclean")


@with_options
def elect(
    places: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOPIC[:0,2-4]]...", help="Topics, or partitions of them.", show_default=False),
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
            metavar="TYPE",
            help="preferred: the first replica, if it is in sync. unclean: any replica, where there is no leader; "
            "records that only others have are lost.",
        ),
    ] = "preferred",
    where: Where = ANYWHERE,
    json: wire.Json = False,
) -> int:
    """Let the preferred replicas lead, or, where nobody leads, any replica."""
    kind = kind.lower()
    if kind not in _KINDS:
        return fail(f"--election-type is {' or '.join(_KINDS)}, not {kind}")
    if bool(places) + everything + (file is not None) != 1:
        return fail("leaders elect takes topics, --all-topic-partitions or --path-to-json-file")
    asking = where.asking()
    try:
        wanted = None if everything else list(read_partitions(file, None)) if file else _named(asking, places or [])
    except ValueError as error:
        return fail(error)
    answers = asking.once(lambda admin: admin.elect(wanted, unclean=kind == "unclean"))
    leaders = {one.place: one.leader for one in asking.patiently(lambda admin: admin.look(closely=False)).partitions}
    out, code = Out(), FINE
    rows: list[tuple[object, ...]] = []
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
    out.flush()
    return code


def _named(asking: Asking, places: list[str]) -> list[Place]:
    seen = asking.patiently(lambda admin: admin.look(closely=False))
    there: dict[str, list[int]] = {}
    for one in seen.partitions:
        there.setdefault(one.topic, []).append(one.number)
    return named_partitions(there, places, "TOPIC")
