"""`seglog cluster choose-leader`: what each replica of a partition has, and the operator's word on which of them leads.

It writes the partition's state in the metadata store, of which a broker tells the address: Kafka's protocol has no
request for it.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, NamedTuple

import typer

from seglog.cli.cluster.requests import ANYWHERE, Where
from seglog.cli.cluster.status import describe
from seglog.cli.options import with_options
from seglog.cli.output import FINE, Out, fail
from seglog.cluster.election import choose, missing_candidates
from seglog.cluster.generation import commit_raised
from seglog.cluster.model import (
    BROKERS,
    NO_LEADER,
    Broker,
    InvalidStateError,
    PartitionState,
    decode_broker,
    decode_partition,
    decode_topic,
    encode,
    of_partition,
    partition_name,
    topic_name,
)
from seglog.cluster.open import open_store
from seglog.cluster.store import Change, MetadataStore, NoSuchNameError, StoreError, VersionChangedError
from seglog.core.clock import SystemClock
from seglog.core.errors import InvalidConfigError

_SESSION_MS = 10_000


class _Found(NamedTuple):
    """A partition, as it is in the store."""

    name: str
    state: PartitionState
    version: int
    brokers: dict[int, Broker]


class _RefusedError(Exception):
    """Nothing was changed, for this reason."""


@with_options
def choose_leader(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    partition: Annotated[int, typer.Argument(metavar="PARTITION", min=0)],
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            metavar="ADDRESS",
            help="The metadata store: sqlite:FILE or zookeeper://HOST:PORT/NAME.  [default: (what the brokers say)]",
            show_default=False,
        ),
    ] = None,
    where: Where = ANYWHERE,
    node: Annotated[
        int | None, typer.Option("--node", metavar="ID", help="The broker that is to lead.", show_default=False)
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> int:
    """Show what each replica of a partition has; with --node let one lead that may have lost something.

    What only other replicas have is cut there, and saved in their .seglog directories first.
    """
    try:
        address = store or where.asking().once(lambda admin: admin.store_address())
        if address is None:
            return fail(f"the brokers at {where.bootstrap} do not say where their metadata store is: use --store")
        return asyncio.run(_choose(address, topic, partition, node, yes=yes))
    except (_RefusedError, StoreError, InvalidConfigError, InvalidStateError) as error:
        return fail(str(error))


async def _choose(address: str, topic: str, partition: int, node: int | None, *, yes: bool) -> int:
    store = await open_store(address, clock=SystemClock(), session_timeout_ms=_SESSION_MS, must_exist=True)
    try:
        found = await _find(store, topic, partition)
        out = Out()
        _show(out, f"{topic}-{partition}", found)
        if node is None:
            out.flush()
            return FINE
        try:
            chosen = choose(found.state, node, found.brokers)
        except ValueError as error:
            raise _RefusedError(str(error)) from error
        for line in _losses(found, node):
            out.line(line)
        out.flush()
        if not yes and not typer.confirm(f"Let broker {node} lead?", default=False):
            raise _RefusedError("nothing was changed")
        try:
            await commit_raised(store, [Change(found.name, encode(chosen), found.version)])
        except (VersionChangedError, NoSuchNameError) as error:
            raise _RefusedError(f"{topic}-{partition} has changed meanwhile: look again") from error
        out.line(f"{topic}-{partition}: {chosen.recovery}")
        out.flush()
        return FINE
    finally:
        await store.close()


async def _find(store: MetadataStore, topic: str, partition: int) -> _Found:
    values = await store.load(BROKERS)
    told = await store.get(topic_name(topic))
    if told is None:
        raise _RefusedError(f"there is no topic {topic}")
    key = decode_topic(topic_name(topic), told.value).topic_id, partition
    name = partition_name(*key)
    stored = await store.get(name)
    if stored is None:
        raise _RefusedError(f"there is no partition {topic}-{partition}")
    registered = [decode_broker(path, value.value) for path, value in values.items() if path.startswith(f"{BROKERS}/")]
    brokers = of_partition({one.node_id: one for one in registered}, key)
    return _Found(name, decode_partition(name, stored.value), stored.version, dict(brokers))


def _show(out: Out, name: str, found: _Found) -> None:
    state, unheard = found.state, missing_candidates(found.state, found.brokers)
    leads = "has no leader" if state.leader == NO_LEADER else f"is led by broker {state.leader}"
    out.line(f"{name} {leads}, epoch {state.leader_epoch}")
    had = {member.node_id for member in state.candidates}
    for node in state.replicas:
        said = state.evidence_of(node)
        role = "in sync" if node in state.isr_nodes else "was in sync" if node in had else "was not in sync"
        if said is not None:
            out.line(f"  {describe(said, is_heard=node not in unheard)} ({role})")
        else:
            there = "has said nothing" if node in found.brokers else "is not there"
            out.line(f"  broker {node} {there} ({role})")


def _losses(found: _Found, node: int) -> list[str]:
    """Which offsets may be missing, or are cut, if this broker leads."""
    said = found.state.evidence_of(node)
    unheard = [one for one in missing_candidates(found.state, found.brokers) if one != node]
    end = None if said is None else said.end
    if end is None:
        is_led = found.state.leader == node
        return [] if is_led else [f"broker {node} has not said what it has: all records may be missing"]
    lines = []
    if unheard or node not in {member.node_id for member in found.state.candidates}:
        lines.append(f"records from offset {end} on may be missing for good")
    lines += [
        f"broker {other.node_id} cuts offsets {end} to {other.end - 1}, and saves them in .seglog first"
        for other in found.state.evidence
        if other.node_id != node and other.end > end
    ]
    return lines
