"""Plans which replicas move when a broker comes or goes: as few as possible, racks kept apart, preferred leaders
spread. Pure.

Kafka leaves this to the user: ``kafka-reassign-partitions`` executes a finished plan, and its ``--generate`` assigns
every partition anew. The moves are carried out with AlterPartitionReassignments (KIP-455), on seglog or Kafka.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from seglog.core.error_codes import ErrorCode
from seglog.core.errors import SeglogError

Place = tuple[str, int]
"""A topic's name and a partition's number."""
Assignment = Mapping[Place, Sequence[int]]
"""Each partition's replicas, the preferred leader first."""


class TooFewBrokersError(SeglogError):
    """A partition has as many replicas as there would be brokers, or more."""

    code = ErrorCode.INVALID_REPLICATION_FACTOR


class ReplicaMove(NamedTuple):
    """A partition and its replicas before and after the move; they may differ only in their order."""

    place: Place
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def adding(self) -> tuple[int, ...]:
        """The brokers that have to copy the partition."""
        return tuple(node for node in self.after if node not in self.before)


def spread(assignment: Assignment, racks: Mapping[int, str | None], onto: Collection[int]) -> list[ReplicaMove]:
    """Give the brokers ``onto`` their share of the replicas and of the preferred leaders.

    Replicas move only to these brokers, to none of them more than its share, and no partition is in fewer racks
    afterwards. ``racks`` are the registered brokers; racks count if every broker has one.
    """
    layout = _Layout(assignment, racks)
    new = sorted(set(onto) & set(racks))
    while _take_one(layout, new):
        pass
    for node in new:
        while layout.take_lead(node):
            pass
    return layout.moves(assignment)


def _take_one(layout: _Layout, new: Sequence[int]) -> bool:
    """Move one replica to the new broker with the fewest. False if none can move."""
    for node in sorted(new, key=lambda node: (layout.replicas[node], node)):
        if layout.replicas[node] >= layout.fair:
            continue
        for donor in sorted(layout.racks, key=lambda donor: (-layout.replicas[donor], donor)):
            if layout.replicas[donor] <= layout.fair or donor in new:
                continue
            place = layout.best_of(donor, node)
            if place is not None:
                layout.put(place, _swapped(layout.now[place], donor, node))
                return True
    return False


def evacuate(assignment: Assignment, racks: Mapping[int, str | None], gone: int) -> list[ReplicaMove]:
    """Move everything off one broker, which need not be registered any more. Raises `TooFewBrokersError`.

    Each of its replicas goes to a broker in a rack that the partition lacks, and among these to the one with the
    fewest.
    """
    left = {node: rack for node, rack in racks.items() if node != gone}
    layout = _Layout(assignment, left)
    for place in sorted(assignment):
        now = layout.now[place]
        if gone not in now:
            continue
        others = [node for node in now if node != gone]
        candidates = [node for node in left if node not in now]
        if not candidates:
            raise TooFewBrokersError(
                f"{place[0]}-{place[1]} has {len(now)} replicas, but only {len(left)} brokers would remain without "
                f"broker {gone}: add a broker first, or keep fewer replicas: seglog cluster set-replicas {len(left)} "
                f"{' '.join(_too_wide(assignment, left, gone))}"
            )
        chosen = min(
            candidates,
            key=lambda node: (
                -layout.racks_of([*others, node]),
                layout.replicas[node],
                layout.of_topic[node, place[0]],
                node,
            ),
        )
        after = _swapped(now, gone, chosen)
        if now[0] == gone:  # prefer a leader that has the records to one that must copy them
            first = min(after, key=lambda node: (layout.leads[node], node == chosen, node))
            after = (first, *(node for node in after if node != first))
        layout.put(place, after)
    return layout.moves(assignment)


def _too_wide(assignment: Assignment, left: Collection[int], gone: int) -> list[str]:
    """The topics with a partition on ``gone`` that has a replica on each of the brokers that are left."""
    return sorted({topic for (topic, _), now in assignment.items() if gone in now and set(left) <= set(now)})


def resize(
    assignment: Assignment,
    racks: Mapping[int, str | None],
    factor: int,
    *,
    of: Collection[Place],
    in_sync: Mapping[Place, Collection[int]],
) -> list[ReplicaMove]:
    """Give each partition ``of`` these ``factor`` replicas. Raises `TooFewBrokersError`.

    New replicas go to brokers in racks that the partition lacks, and among these to those with the fewest. Replicas
    leave brokers that are gone first, then those that are not in sync, then those whose rack has another one, and among
    these the brokers with the most. The preferred leader stays if it is in sync. ``assignment`` has all partitions.
    """
    if factor > len(racks):
        there = "1 is" if len(racks) == 1 else f"{len(racks)} are"
        raise TooFewBrokersError(
            f"{factor} replicas need as many brokers, and {there} registered: start more, or keep fewer"
        )
    layout = _Layout(assignment, racks)
    for place in sorted(of):
        while len(now := layout.now[place]) < factor:
            layout.put(place, (*now, layout.best_addition(place)))
        while len(now := layout.now[place]) > factor:
            gone = layout.best_removal(place, in_sync.get(place, ()))
            layout.put(place, tuple(node for node in now if node != gone))
    return layout.moves(assignment)


class _Layout:
    """The layout while moves are chosen. Brokers that are not registered are not counted."""

    def __init__(self, assignment: Assignment, racks: Mapping[int, str | None]) -> None:
        self.racks: Final = racks
        self.now: Final = {place: tuple(replicas) for place, replicas in assignment.items()}
        self.has: Final[dict[int, set[Place]]] = {node: set() for node in racks}
        self.replicas: Final[Counter[int]] = Counter()
        self.leads: Final[Counter[int]] = Counter()
        self.of_topic: Final[Counter[tuple[int, str]]] = Counter()
        self._racks_count: Final = None not in racks.values()
        for place, replicas in self.now.items():
            self._count(place, replicas, 1)
        there = len(racks) or 1
        self.fair: Final = sum(self.replicas.values()) // there
        self._fair_leads: Final = sum(self.leads.values()) // there

    def _count(self, place: Place, replicas: Sequence[int], one: int) -> None:
        for node in replicas:
            if node in self.racks:
                self.replicas[node] += one
                self.of_topic[node, place[0]] += one
                (self.has[node].add if one > 0 else self.has[node].discard)(place)
        if replicas and replicas[0] in self.racks:
            self.leads[replicas[0]] += one

    def put(self, place: Place, replicas: tuple[int, ...]) -> None:
        self._count(place, self.now[place], -1)
        self.now[place] = replicas
        self._count(place, replicas, 1)

    def racks_of(self, replicas: Sequence[int]) -> int:
        """Return the number of racks; a broker that is not registered counts as a rack of its own."""
        if not self._racks_count:
            return len(replicas)
        return len({self.racks.get(node, f"\0{node}") for node in replicas})

    def best_of(self, donor: int, node: int) -> Place | None:
        """Return the best partition to move from ``donor`` to ``node``: one that the donor leads while the node leads
        too few, of a topic of which the node has little."""
        wants_lead = self.leads[node] < self._fair_leads < self.leads[donor]
        best: tuple[bool, int, Place] | None = None
        for place in self.has[donor]:
            now = self.now[place]
            if node in now:
                continue
            rank = ((now[0] == donor) != wants_lead, self.of_topic[node, place[0]], place)
            if (best is None or rank < best) and self.racks_of(_swapped(now, donor, node)) >= self.racks_of(now):
                best = rank
        return None if best is None else best[2]

    def best_addition(self, place: Place) -> int:
        """Return the best broker for one more replica."""
        now = self.now[place]
        return min(
            (node for node in self.racks if node not in now),
            key=lambda node: (
                -self.racks_of([*now, node]),
                self.replicas[node],
                self.of_topic[node, place[0]],
                node,
            ),
        )

    def best_removal(self, place: Place, in_sync: Collection[int]) -> int:
        """Return the broker that can best do without its replica."""
        now = self.now[place]
        return min(
            now,
            key=lambda node: (
                node in self.racks,
                node in in_sync,
                node == now[0],
                -self.racks_of([other for other in now if other != node]),
                -self.replicas[node],
                -node,
            ),
        )

    def take_lead(self, node: int) -> bool:
        """Make the broker the preferred leader of one more of its partitions, if it has too few and another broker too
        many."""
        if self.leads[node] >= self._fair_leads:
            return False
        too_many = [place for place in self.has[node] if self.leads[self.now[place][0]] > self._fair_leads]
        if not too_many:
            return False
        place = min(too_many, key=lambda place: (-self.leads[self.now[place][0]], place))
        now = self.now[place]
        self.put(place, _swapped(_swapped(_swapped(now, now[0], -1), node, now[0]), -1, node))
        return True

    def moves(self, before: Assignment) -> list[ReplicaMove]:
        return [
            ReplicaMove(place, tuple(before[place]), replicas)
            for place, replicas in sorted(self.now.items())
            if tuple(before[place]) != replicas
        ]


def _swapped(replicas: tuple[int, ...], old: int, new: int) -> tuple[int, ...]:
    return tuple(new if node == old else node for node in replicas)
