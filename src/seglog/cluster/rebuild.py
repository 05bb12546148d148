"""Rebuilds the metadata store from log directories, if there is no copy of it. Pure.

The directories have topics, their ids and configurations, partitions, and the brokers with replicas. Leader epochs
continue above the highest found. No log says who was in sync, so no partition has a leader until its replicas have
reported what they have. Anything else that cannot be read is guessed, and each guess is reported.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from seglog.cluster.backup import CLUSTER, counters, undecided
from seglog.cluster.formats import FORMAT, OURS
from seglog.cluster.model import (
    GENERATION,
    GENERATION_BASE,
    NO_LEADER,
    PartitionState,
    TopicState,
    encode,
    partition_name,
    topic_name,
)


class FoundReplica(NamedTuple):
    """A replica in a log directory of broker ``node_id``; ``leader_epoch`` is the last one in its log. ``config`` is
    None if the directory does not have it. ``generation`` is the highest that its broker has stored."""

    topic: str
    topic_id: UUID
    number: int
    node_id: int
    path: str
    leader_epoch: int
    config: Mapping[str, str] | None = None
    is_stray: bool = False
    generation: int = 0


class RebuiltStore(NamedTuple):
    """``values`` are those of the new store; ``guesses`` has a line for each value that could not be read."""

    values: Mapping[str, bytes]
    guesses: Sequence[str]


def rebuild(
    cluster_id: str, found: Iterable[FoundReplica], now_ms: int, *, broker_epoch: int = 0, min_insync: int = 1
) -> RebuiltStore:
    """Return the store of a cluster whose brokers have these replicas. ``min_insync`` is for topics that do not set
    it."""
    replicas = sorted(found, key=lambda one: (one.topic, one.number, one.node_id, one.path))
    guesses: list[str] = []
    by_topic = _topics(replicas, guesses)
    epochs: dict[tuple[UUID, int], int] = {}
    for one in replicas:  # strays too: they may be used again
        epochs[one.topic_id, one.number] = max(one.leader_epoch, epochs.get((one.topic_id, one.number), -1))
    values: dict[str, bytes] = {}
    for topic, those in by_topic.items():
        values |= _topic(topic, those, epochs, min_insync, guesses)
    generation = max((one.generation for one in replicas), default=0)
    values |= counters(now_ms, broker_epoch=broker_epoch)
    values |= {GENERATION: b"0", GENERATION_BASE: b"%d" % (generation + 1)}
    values[FORMAT] = b"%d" % OURS.high
    values[CLUSTER] = json.dumps({"cluster.id": cluster_id}).encode()
    guesses.append("no log directory has the dynamic configurations of brokers (config/brokers/…): set them again")
    return RebuiltStore(values, guesses)


def _topics(replicas: Sequence[FoundReplica], guesses: list[str]) -> Mapping[str, Sequence[FoundReplica]]:
    """Return the replicas of each topic. Of two topics of one name the one that is served, or was later, continues; the
    directories of the other stay strays. A stray counts if no broker serves that partition."""
    served = {(one.topic_id, one.number) for one in replicas if not one.is_stray}
    by_topic: dict[str, dict[UUID, list[FoundReplica]]] = {}
    for one in replicas:
        if not one.is_stray or (one.topic_id, one.number) not in served:
            by_topic.setdefault(one.topic, {}).setdefault(one.topic_id, []).append(one)
    chosen = {}
    for topic, by_id in by_topic.items():
        kept, *others = sorted(by_id, key=lambda topic_id: _rank(by_id[topic_id]), reverse=True)
        chosen[topic] = by_id[kept]
        for other in others:
            paths = ", ".join(one.path for one in by_id[other])
            guesses.append(f"{topic}: two topics have this name. The one with id {kept} continues; set aside: {paths}")
        if all(one.is_stray for one in by_id[kept]):
            guesses.append(f"{topic}: only strays have it; if it was deleted, delete it again")
    return chosen


def _rank(replicas: Sequence[FoundReplica]) -> tuple[bool, int, int]:
    return (
        any(not one.is_stray for one in replicas),
        max(one.leader_epoch for one in replicas),
        len(replicas),
    )


def _topic(
    topic: str,
    replicas: Sequence[FoundReplica],
    epochs: Mapping[tuple[UUID, int], int],
    min_insync: int,
    guesses: list[str],
) -> dict[str, bytes]:
    nodes: dict[int, list[int]] = {}
    for one in replicas:
        holders = nodes.setdefault(one.number, [])
        if one.node_id not in holders:
            holders.append(one.node_id)
    topic_id = replicas[0].topic_id
    everywhere = sorted({one.node_id for one in replicas})
    missing = [number for number in range(max(nodes)) if number not in nodes]
    if missing:
        numbers = ", ".join(map(str, missing))
        guesses.append(
            f"{topic}: no directory has partitions {numbers}: they are created empty, on brokers {everywhere}"
        )
    assignment = []
    for number in range(max(nodes) + 1):
        holders = nodes.get(number, everywhere)
        turn = number % len(holders)
        assignment.append((*holders[turn:], *holders[:turn]))  # spread the preferred leaders
    factors = {len(one) for one in assignment}
    told = "" if len(factors) == 1 else "partitions have different numbers of replicas, "
    guesses.append(f"{topic}: {told}the order of its replicas, and so its preferred leaders, are guessed")
    configs = [one.config for one in replicas if one.config is not None]
    config = configs[-1] if configs else {}
    if not configs:
        guesses.append(f"{topic}: no directory has its configuration: it gets the defaults of its brokers")
    elif any(one != config for one in configs):
        guesses.append(f"{topic}: its replicas have different configurations: it gets that of {replicas[-1].path}")
    needed = int(config.get("min.insync.replicas", min_insync))
    values = {
        topic_name(topic): encode(
            TopicState(name=topic, topic_id=topic_id, assignment=tuple(assignment), config=dict(config))
        )
    }
    for number in nodes:
        state = PartitionState(
            replicas=assignment[number], leader=NO_LEADER, leader_epoch=0, isr=(), min_insync=max(needed, 1)
        )
        values[partition_name(topic_id, number)] = encode(undecided(state, epochs[topic_id, number] + 1))
    return values
