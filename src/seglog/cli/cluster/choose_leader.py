"""`seglog cluster choose-leader`: show the log of each replica of a partition; the operator chooses the leader.

The command writes the partition's state to the metadata store, because Kafka's protocol has no request for it. A broker
tells it the address of the store.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, NamedTuple

import typer

from seglog.cli.cluster.requests import DEFAULT_CLUSTER, ClusterOptions
from seglog.cli.cluster.status import describe
from seglog.cli.cluster.store_session import StoreConfig, with_store
from seglog.cli.options import with_options
from seglog.cli.output import FINE, Out, fail
from seglog.cluster.election import choose, missing_candidates
from seglog.cluster.generation import commit_raised
from seglog.cluster.model import (
    BROKERS,
    NO_LEADER,
    BrokerRegistration,
    PartitionState,
    decode_broker,
    decode_partition,
    decode_topic,
    encode,
    of_partition,
    offline_name,
    partition_name,
    topic_name,
)
from seglog.cluster.store import Change, MetadataStore, NoSuchNameError, VersionChangedError
from seglog.core.errors import RequestFailedError


class _StoredPartition(NamedTuple):
    """A partition as stored."""

    name: str
    state: PartitionState
    version: int
    brokers: dict[int, BrokerRegistration]
    """Those that can serve the partition."""
    unable: dict[int, str]
    """Registered brokers that cannot, and why."""


@with_options
def choose_leader(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    partition: Annotated[int, typer.Argument(metavar="PARTITION", min=0)],
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            metavar="ADDRESS",
            help="The metadata store: sqlite:FILE or zookeeper://HOST:PORT/NAME.  [default: (from the brokers)]",
            show_default=False,
        ),
    ] = None,
    store_config: StoreConfig = None,
    where: ClusterOptions = DEFAULT_CLUSTER,
    node: Annotated[
        int | None, typer.Option("--node", metavar="ID", help="The new leader.", show_default=False)
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> int:
    """Show the log of each replica of a partition; with --node elect one that may lack records.

    The other replicas truncate records that it lacks, after saving them in their .seglog directories.
    """
    address = store or where.requests().once(lambda admin: admin.store_address())
    if address is None:
        return fail(f"the brokers at {where.bootstrap} do not report their metadata store: use --store")
    return asyncio.run(
        with_store(address, store_config, lambda opened: _choose(opened, topic, partition, node, yes=yes))
    )


async def _choose(store: MetadataStore, topic: str, partition: int, node: int | None, *, yes: bool) -> int:
    found = await _find(store, topic, partition)
    with Out() as out:
        _show(out, f"{topic}-{partition}", found)
        if node is None:
            return FINE
        if node in found.unable:
            raise RequestFailedError(f"broker {node} cannot lead {topic}-{partition}: {found.unable[node]}")
        try:
            chosen = choose(found.state, node, found.brokers)
        except ValueError as error:
            raise RequestFailedError(str(error)) from error
        for line in _losses(found, node):
            out.line(line)
        out.flush()
        if not yes and not typer.confirm(f"Make broker {node} the leader?", default=False):
            raise RequestFailedError("nothing was changed")
        try:
            await commit_raised(store, [Change(found.name, encode(chosen), found.version)])
        except (VersionChangedError, NoSuchNameError) as error:
            raise RequestFailedError(f"{topic}-{partition} has changed since: run the command again") from error
        out.line(f"{topic}-{partition}: {chosen.recovery}")
    return FINE


async def _find(store: MetadataStore, topic: str, partition: int) -> _StoredPartition:
    values = await store.load(BROKERS)
    told = await store.get(topic_name(topic))
    if told is None:
        raise RequestFailedError(f"topic {topic} does not exist")
    key = decode_topic(topic_name(topic), told.value).topic_id, partition
    name = partition_name(*key)
    stored = await store.get(name)
    if stored is None:
        raise RequestFailedError(f"partition {topic}-{partition} does not exist")
    registered = [decode_broker(path, value.value) for path, value in values.items() if path.startswith(f"{BROKERS}/")]
    brokers = of_partition({one.node_id: one for one in registered}, key)
    refusals = {one.node_id: one.refused.get(offline_name(*key)) for one in registered if one.node_id not in brokers}
    unable = {
        node: "its log directory has failed" if refusal is None else refusal.reason
        for node, refusal in refusals.items()
    }
    return _StoredPartition(name, decode_partition(name, stored.value), stored.version, dict(brokers), unable)


def _show(out: Out, name: str, found: _StoredPartition) -> None:
    state, unheard = found.state, missing_candidates(found.state, found.brokers)
    leads = "has no leader" if state.leader == NO_LEADER else f"is led by broker {state.leader}"
    out.line(f"{name} {leads}, epoch {state.leader_epoch}")
    had = {member.node_id for member in state.candidates}
    for node in state.replicas:
        said = state.evidence_of(node)
        role = "in sync" if node in state.isr_nodes else "was in sync" if node in had else "was not in sync"
        if said is not None:
            out.line(f"  {describe(said, is_heard=node not in unheard)} ({role})")
        elif node in found.unable:
            out.line(f"  broker {node} does not serve its replica: {found.unable[node]} ({role})")
        else:
            there = "has not reported its log" if node in found.brokers else "is not running"
            out.line(f"  broker {node} {there} ({role})")


def _losses(found: _StoredPartition, node: int) -> list[str]:
    """The offsets that are lost or truncated if this broker leads."""
    said = found.state.evidence_of(node)
    unheard = [one for one in missing_candidates(found.state, found.brokers) if one != node]
    end = None if said is None else said.end
    if end is None:
        is_led = found.state.leader == node
        return [] if is_led else [f"broker {node} has not reported its log: all records may be missing"]
    lines = []
    if unheard or node not in {member.node_id for member in found.state.candidates}:
        lines.append(f"records from offset {end} on may be missing for good")
    lines += [
        f"broker {other.node_id} truncates offsets {end} to {other.end - 1} after saving them in .seglog"
        for other in found.state.evidence
        if other.node_id != node and other.end > end
    ]
    return lines
