"""`seglog cluster status`: brokers, unhealthy partitions, and advice for each finding."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from seglog.cli.cluster.requests import DEFAULT_CLUSTER, ClusterOptions, pause
from seglog.cli.cluster.store_session import StoreConfig
from seglog.cli.options import with_options
from seglog.cli.output import DAMAGE, FINE, Out, count, format_size, is_terminal, show_table
from seglog.client.bootstrap import parse_bootstrap
from seglog.cluster.health import ClusterStatus, HealthFinding, PartitionStatus, judge
from seglog.cluster.model import Evidence
from seglog.cluster.store import StoreError
from seglog.core.errors import InvalidConfigError, RequestFailedError

if TYPE_CHECKING:
    from seglog.client.cluster import ClusterAdmin

_CLEAR: Final = "\x1b[H\x1b[2J"
_WATCH_SECONDS: Final = 2.0


@with_options
def status(
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            metavar="ADDRESS",
            help="Read the metadata store, even if no broker responds: sqlite:FILE or zookeeper://HOST:PORT/NAME.",
            show_default=False,
        ),
    ] = None,
    store_config: StoreConfig = None,
    where: ClusterOptions = DEFAULT_CLUSTER,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Show healthy partitions too.")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh every two seconds, until Ctrl-C.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, one object per refresh.")] = False,
) -> int:
    """Show the state of a cluster and advice for each problem. The exit code is 0 if it is healthy, else 1."""
    cluster = where.requests()
    while True:
        seen = (
            cluster.once(lambda admin: look_at_brokers(admin, store_config))
            if store is None
            else _of_store(store, store_config, where)
        )
        findings = judge(seen)
        with Out() as out:
            if json:
                out.json(status_document(seen, findings))
            else:
                if watch and is_terminal():
                    out.write(_CLEAR)
                _print(out, seen, findings, everything=everything)
        if not watch:
            return DAMAGE if findings else FINE
        pause(_WATCH_SECONDS)


def look_at_brokers(admin: ClusterAdmin, store_config: str | None = None) -> ClusterStatus:
    """The state by the brokers; if something is wrong, also by their metadata store, if it is readable here."""
    from seglog.cli.cluster import store_view

    seen = admin.look()
    is_whole = all(one.leader is not None and not one.missing for one in seen.partitions)
    address = None if is_whole else admin.store_address()
    if address is not None:
        with suppress(StoreError, InvalidConfigError):
            return store_view.with_reports(seen, store_view.look(address, store_config))
    return seen


def _of_store(address: str, config: str | None, where: ClusterOptions) -> ClusterStatus:
    """The state in the store, with the replicas' states from those brokers that respond."""
    from seglog.cli.cluster import store_view

    seen = store_view.look(address, config)
    listeners = ",".join(text for broker in seen.brokers.values() for text in broker.listeners.values())
    if listeners:
        with suppress(RequestFailedError, ValueError):
            return where.requests(parse_bootstrap(listeners)).once(lambda admin: admin.look_closely(seen))
    return seen


def status_document(seen: ClusterStatus, findings: Sequence[HealthFinding]) -> dict[str, Any]:
    return {
        "cluster": seen.cluster_id,
        "healthy": not findings,
        "controller": seen.controller,
        "brokers": [
            {
                "node": node,
                "epoch": broker.epoch,
                "since": broker.since,
                "rack": broker.rack,
                "listeners": dict(broker.listeners),
                "stopping": broker.is_stopping,
                "answers": broker.answers,
                "failed": dict(broker.failed),
                "full": dict(broker.full),
                "strays": broker.strays,
                "strayBytes": broker.stray_bytes,
                "refused": [
                    {"partition": f"{topic}-{number}", "reason": refusal.reason, "directory": refusal.directory}
                    for (topic, number), refusal in sorted(broker.refused.items())
                ],
            }
            for node, broker in sorted(seen.brokers.items())
        ],
        "findings": [
            {
                "kind": one.kind,
                "what": one.what,
                "advice": one.advice,
                "partitions": [f"{topic}-{number}" for topic, number in one.places],
            }
            for one in findings
        ],
        "partitions": [_row(one) for one in seen.partitions],
    }


def _row(one: PartitionStatus) -> dict[str, Any]:
    return {
        "topic": one.topic,
        "partition": one.number,
        "leader": one.leader,
        "leaderEpoch": one.leader_epoch,
        "replicas": list(one.replicas),
        "isr": list(one.isr),
        "elr": list(one.elr),
        "lastKnown": list(one.last_known),
        "adding": list(one.adding),
        "removing": list(one.removing),
        "minInsync": one.min_insync,
        "ends": {str(node): end for node, end in sorted(one.ends.items())},
        "sizes": {str(node): size for node, size in sorted(one.sizes.items())},
        "evidence": [said._asdict() for said in one.evidence],
        "unheard": list(one.unheard),
        "recovery": None if one.recovery is None else one.recovery._asdict(),
    }


def _print(out: Out, seen: ClusterStatus, findings: Sequence[HealthFinding], *, everything: bool) -> None:
    topics = {one.topic for one in seen.partitions}
    out.line(
        f"cluster {seen.cluster_id}: {count(len(seen.brokers), 'broker')}, "
        f"{count(len(seen.partitions), 'partition')} of {count(len(topics), 'topic')}, "
        f"controller {_or_none(seen.controller)}"
    )
    _print_brokers(out, seen)
    found = {place for finding in findings for place in finding.places}
    shown = [one for one in seen.partitions if everything or one.place in found or one.adding or one.removing]
    if shown:
        out.line("")
        show_table(
            out,
            ("partition", "leader", "epoch", "replicas", "isr", "elr", "moving", "behind"),
            [_cells(one) for one in shown],
            right=("leader", "epoch"),
        )
    for one in seen.partitions:
        if one.recovery is not None and (everything or one.recovery.leader_epoch == one.leader_epoch):
            out.line(f"{one.topic}-{one.number}: {one.recovery}")
        for said in one.evidence if one.leader is None else ():
            out.line(f"{one.topic}-{one.number}: {describe(said, is_heard=said.node_id not in one.unheard)}")
    out.line("")
    if not findings:
        out.line("healthy")
    for finding in findings:
        out.line(f"{finding.kind}: {finding.what}")
        out.line(f"  {finding.advice}")


def describe(said: Evidence, *, is_heard: bool = True) -> str:
    """The log of a replica, in one line. ``is_heard``: it is not a candidate, or has the log that it had as one."""
    has = f"offsets {said.start} to {said.end - 1}" if said.end > said.start else f"nothing, up to offset {said.end}"
    lost = "" if is_heard else "; this is not the log that it had when it was in sync"
    return f"broker {said.node_id} has {has}, the last of epoch {said.last_epoch}, flushed to {said.flushed}{lost}"


def _print_brokers(out: Out, seen: ClusterStatus) -> None:
    of_store = ("epoch", "since") if any(broker.epoch is not None for broker in seen.brokers.values()) else ()
    rows = []
    for node, broker in sorted(seen.brokers.items()):
        own = [one for one in seen.partitions if node in one.replicas]
        rows.append(
            (
                node,
                *((_or_none(broker.epoch), _or_none(broker.since)) if of_store else ()),
                broker.rack or "-",
                ", ".join(f"{name}://{at}" if name else at for name, at in broker.listeners.items()),
                sum(one.leader == node for one in own),
                len(own),
                sum(node in one.isr for one in own),
                format_size(sum(one.sizes.get(node, 0) for one in own)),
                "stopping" if broker.is_stopping else "silent" if broker.answers is False else "",
            )
        )
    show_table(
        out,
        ("broker", *of_store, "rack", "listeners", "leads", "replicas", "in sync", "size", ""),
        rows,
        right=("broker", "epoch", "since", "leads", "replicas", "in sync", "size"),
    )


def _cells(one: PartitionStatus) -> tuple[object, ...]:
    moving = [*(f"+{node}" for node in one.adding), *(f"-{node}" for node in one.removing)]
    behind = [
        f"{node}: {_or_none(one.lag(node))}{'' if (left := one.lag_bytes(node)) is None else f' ({format_size(left)})'}"
        for node in one.replicas
        if node not in one.isr and one.leader is not None
    ]
    return (
        f"{one.topic}-{one.number}",
        "none" if one.leader is None else one.leader,
        _or_none(one.leader_epoch),
        _list(one.replicas),
        _list(one.isr),
        _list(one.elr),
        _list(moving),
        ", ".join(behind),
    )


def _list(values: Sequence[object]) -> str:
    return ",".join(map(str, values))


def _or_none(value: object) -> str:
    return "-" if value is None else str(value)
