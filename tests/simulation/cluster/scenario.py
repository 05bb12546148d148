"""The kind of cluster that a seed draws: how many brokers, which replicas, and which requests."""

from __future__ import annotations

import random
from typing import Final, NamedTuple


class Scenario(NamedTuple):
    """``retention``: old segments go. ``unclean``: anyone may lead when nobody else can, and power is cut anywhere.

    ``operators``: disks are emptied, swapped and restored from backups, all machines lose power at once, and somebody
    chooses leaders where there is none. ``flushed``: each append is fsynced, so that no power cut loses anything.
    ``groups``: consumers commit offsets. ``coordinators``: clients are those of `tests.simulation.transactions` or
    `tests.simulation.consumer_groups`, and the topics of their coordinators must lose nothing. ``ranges``: a client
    also reads ranges of offsets that it chose before (`tests.simulation.transactions.range_reader`). ``principals``:
    brokers have an authorizer, clients and brokers log in, and ACLs come and go (`tests.simulation.cluster.guests`).
    """

    nodes: int = 3
    partitions: int = 1
    replicas: int = 3
    min_insync: int = 2
    retention: bool = False
    flush_ms: int | None = None
    unclean: bool = False
    operators: bool = False
    flushed: bool = False
    groups: bool = False
    coordinators: bool = False
    ranges: bool = False
    principals: bool = False

    @property
    def may_lose(self) -> bool:
        return self.unclean or self.operators

    @property
    def assignment(self) -> tuple[tuple[int, ...], ...]:
        return tuple(
            tuple((first + step) % self.nodes + 1 for step in range(self.replicas)) for first in range(self.partitions)
        )


_KINDS = ((3, 3, 2), (3, 3, 2), (3, 3, 2), (3, 2, 2), (3, 2, 1), (4, 3, 2), (5, 3, 2), (5, 5, 3))
"""Brokers, replicas, min.insync.replicas."""


PRINCIPALS: Final = 0.4
"""The share of runs without operators in which clients log in."""


def draw(seed: int, *, unclean: bool = False, operators: bool = False) -> Scenario:
    rng = random.Random(seed + 2)
    nodes, replicas, min_insync = rng.choice(_KINDS)
    scenario = Scenario(
        nodes=nodes,
        partitions=rng.choice((1, 1, 2, 3)),
        replicas=replicas,
        min_insync=min_insync,
        retention=rng.random() < 0.25,
        flush_ms=rng.choice((None, None, 1_000)),
        unclean=unclean,
    )
    if not operators:
        return scenario._replace(
            groups=not unclean and random.Random(seed + 8).random() < 0.2,
            principals=random.Random(seed + 13).random() < PRINCIPALS,
        )
    min_insync = rng.choice((1, min_insync))
    if random.Random(seed + 3).random() < 0.1:  # what is moved is on other brokers then, all of it
        scenario = scenario._replace(replicas=1)
    return scenario._replace(operators=True, min_insync=min_insync, flushed=rng.random() < 0.5)
