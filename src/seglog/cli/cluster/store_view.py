"""A cluster as its metadata store describes it, even if no broker responds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from uuid import UUID

from seglog.cli.cluster.store_session import no_cluster, with_store
from seglog.cluster import model
from seglog.cluster.backup import CLUSTER
from seglog.cluster.election import missing_candidates
from seglog.cluster.health import BrokerStatus, ClusterStatus, PartitionStatus
from seglog.cluster.store import StoreError, VersionedValue


def look(address: str, config: str | None = None) -> ClusterStatus:
    """Brokers and partitions; ``config`` as of `with_store`. Raises `StoreError` or `InvalidConfigError`."""
    values = asyncio.run(with_store(address, config, lambda store: store.load("")))
    if CLUSTER not in values:
        raise StoreError(no_cluster(address))
    return read(values)


def with_reports(seen: ClusterStatus, known: ClusterStatus) -> ClusterStatus:
    """Add to a state by the brokers what only the store has: the reports of replicas, how leaders were elected, and the
    replicas that brokers refuse."""
    if seen.cluster_id != known.cluster_id:
        return seen
    states = {one.place: one for one in known.partitions}
    partitions = (
        replace(one, evidence=said.evidence, unheard=said.unheard, recovery=said.recovery)
        if (said := states.get(one.place)) is not None and said.leader == one.leader
        else one
        for one in seen.partitions
    )
    brokers = {
        node: replace(one, refused=known.brokers[node].refused) if node in known.brokers else one
        for node, one in seen.brokers.items()
    }
    return replace(seen, brokers=brokers, partitions=tuple(partitions))


def read(values: Mapping[str, VersionedValue]) -> ClusterStatus:
    """Brokers and partitions from the values of a store. Values of a later release are skipped."""
    brokers: dict[int, BrokerStatus] = {}
    registered: dict[int, model.BrokerRegistration] = {}
    names: dict[UUID, str] = {}
    states: dict[tuple[UUID, int], model.PartitionState] = {}
    assigned: dict[tuple[UUID, int], tuple[int, ...]] = {}
    for name, (value, _) in values.items():
        kind, _, rest = name.partition("/")
        with suppress(model.InvalidStateError):
            if kind == model.BROKERS and rest:
                broker = model.decode_broker(name, value)
                strays, stray_bytes = _strays(values, broker.node_id)
                registered[broker.node_id] = broker
                brokers[broker.node_id] = BrokerStatus(
                    node_id=broker.node_id,
                    rack=broker.rack,
                    listeners=broker.listeners,
                    epoch=broker.epoch,
                    since=broker.kept_since,
                    is_stopping=broker.is_stopping,
                    strays=strays,
                    stray_bytes=stray_bytes,
                )
            elif kind == model.TOPICS and rest:
                topic = model.decode_topic(name, value)
                names[topic.topic_id] = topic.name
                assigned.update({(topic.topic_id, at): nodes for at, nodes in enumerate(topic.assignment)})
            elif kind == model.PARTITIONS and rest:
                states[model.parse_partition_name(name)] = model.decode_partition(name, value)
    places = {model.offline_name(*key): (names[key[0]], key[1]) for key in assigned}
    for node, broker in registered.items():
        refused = {places[name]: refusal for name, refusal in broker.refused.items() if name in places}
        brokers[node] = replace(brokers[node], refused=refused)
    partitions = [
        _seen(
            names[topic_id],
            number,
            states.get((topic_id, number)),
            replicas,
            model.of_partition(registered, (topic_id, number)),
        )
        for (topic_id, number), replicas in assigned.items()
    ]
    return ClusterStatus(
        cluster_id=_field(values, CLUSTER, "cluster.id") or "",
        controller=_controller(values),
        brokers=dict(sorted(brokers.items())),
        partitions=tuple(sorted(partitions, key=lambda one: one.place)),
    )


def _seen(
    topic: str,
    number: int,
    state: model.PartitionState | None,
    assigned: tuple[int, ...],
    brokers: Mapping[int, model.BrokerRegistration],
) -> PartitionStatus:
    """``state`` is None for a partition that the controller has not seen yet."""
    if state is None:
        return PartitionStatus(topic=topic, number=number, replicas=assigned, isr=(), leader=None)
    return PartitionStatus(
        topic=topic,
        number=number,
        replicas=state.replicas,
        isr=state.isr_nodes,
        leader=None if state.leader == model.NO_LEADER else state.leader,
        leader_epoch=state.leader_epoch,
        elr=tuple(member.node_id for member in state.elr),
        last_known=state.last_known_nodes,
        adding=state.adding,
        removing=state.removing,
        min_insync=state.min_insync,
        evidence=state.evidence,
        unheard=missing_candidates(state, brokers) if state.leader == model.NO_LEADER else (),
        recovery=state.recovery,
    )


def _strays(values: Mapping[str, VersionedValue], node_id: int) -> tuple[int, int]:
    found = values.get(model.strays_name(node_id))
    counts = found.value.split() if found is not None else []
    if len(counts) != 2 or not all(map(bytes.isdigit, counts)):
        return 0, 0
    return int(counts[0]), int(counts[1])


def _controller(values: Mapping[str, VersionedValue]) -> int | None:
    found = _field(values, "controller", "node_id")
    return int(found) if found is not None and found.isdecimal() else None


def _field(values: Mapping[str, VersionedValue], name: str, key: str) -> str | None:
    """One field of a JSON value; None if it is missing."""
    if name not in values:
        return None
    with suppress(ValueError, AttributeError):
        found = json.loads(values[name].value).get(key)
        return None if found is None else str(found)
    return None
