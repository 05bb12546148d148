"""The server-side assignors of consumer groups, ``uniform`` and ``range`` (KIP-848), as Kafka 4.4 has them. Pure.

* `range` gives each member consecutive partitions of a topic, in the order of the members' instance ids, then of their
  ids. Topics with equally many partitions and the same subscribers are therefore divided alike, so that a member can
  join them. It does not look at the assignment before.
* `uniform` gives all members equally many partitions, plus or minus one, and moves as few partitions as that takes. If
  the members subscribe to different topics, it balances the subscribers of each topic as far as the topic allows.

Racks decide nothing in Kafka 4.4. Where Kafka's ``uniform`` walks a hash table, ours takes members and topics in the
order of their ids, so the same group always gets the same assignment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from seglog.core.errors import SeglogError

RANGE: Final = "range"
UNIFORM: Final = "uniform"

Assignment = Mapping[UUID, frozenset[int]]
"""The partitions of one member, by topic id; without empty sets."""

_UNOWNED: Final = -1
_MAX_ROUNDS: Final = 16


class AssignorError(SeglogError):
    """A member subscribes to a topic that does not exist (``PartitionAssignorException``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSubscription:
    """A member as an assignor sees it: the existing topics that it subscribes to, by name or by pattern, and its target
    assignment until now."""

    member_id: str
    instance_id: str | None = None
    rack: str | None = None
    topics: frozenset[UUID]
    assigned: Assignment


def assign(
    name: str,
    members: Mapping[str, MemberSubscription],
    partitions: Mapping[UUID, int],
    *,
    is_homogeneous: bool | None = None,
) -> dict[str, dict[UUID, frozenset[int]]]:
    """Return the new target assignment of every member.

    ``name`` is a key of `ASSIGNORS`. ``partitions`` has the number of partitions of each topic. ``is_homogeneous`` is
    Kafka's ``SubscriptionType``, which `uniform` goes by; without it the subscribed topics decide. Raises
    `AssignorError`.
    """
    for member in members.values():
        for topic in member.topics:
            if topic not in partitions:
                raise AssignorError(f"Member is subscribed to a non-existent topic: {topic}")
    if is_homogeneous is None:
        is_homogeneous = len({member.topics for member in members.values()}) <= 1
    return ASSIGNORS[name](members, partitions, is_homogeneous)


def _range(
    members: Mapping[str, MemberSubscription], partitions: Mapping[UUID, int], _is_homogeneous: bool
) -> dict[str, dict[UUID, frozenset[int]]]:
    subscribers: dict[UUID, list[str]] = {}
    for member_id in sorted(members, key=lambda member_id: _range_order(members[member_id])):
        for topic in members[member_id].topics:
            subscribers.setdefault(topic, []).append(member_id)
    assignment: dict[str, dict[UUID, frozenset[int]]] = {member_id: {} for member_id in members}
    for topic in sorted(subscribers):
        quota, larger = divmod(partitions[topic], len(subscribers[topic]))
        start = 0
        for number, member_id in enumerate(subscribers[topic]):
            end = start + quota + (number < larger)
            if start < end:
                assignment[member_id][topic] = frozenset(range(start, end))
            start = end
    return assignment


def _range_order(member: MemberSubscription) -> tuple[bool, bytes]:
    """Static members come first. Java compares texts by UTF-16 code units."""
    text = member.member_id if member.instance_id is None else member.instance_id
    return member.instance_id is None, text.encode("utf-16-be", "surrogatepass")


def _uniform(
    members: Mapping[str, MemberSubscription], partitions: Mapping[UUID, int], is_homogeneous: bool
) -> dict[str, dict[UUID, frozenset[int]]]:
    ordered = [members[member_id] for member_id in sorted(members)]
    kept = [_kept(member, partitions) for member in ordered]
    if is_homogeneous:
        assigned = _uniform_of_equals(ordered, kept, partitions)
    else:
        assigned = _DifferentSubscriptions(ordered, kept, partitions).assign()
    return {member.member_id: assignment for member, assignment in zip(ordered, assigned, strict=True)}


def _kept(member: MemberSubscription, partitions: Mapping[UUID, int]) -> dict[UUID, frozenset[int]]:
    """The member's partitions of the topics that it still subscribes to.

    A coordinator that has just moved may know fewer partitions of a topic than the one before it."""
    return {
        topic: numbers if max(numbers) < partitions[topic] else numbers & frozenset(range(partitions[topic]))
        for topic, numbers in member.assigned.items()
        if topic in member.topics and numbers
    }


def _uniform_of_equals(
    members: list[MemberSubscription], kept: list[dict[UUID, frozenset[int]]], partitions: Mapping[UUID, int]
) -> list[dict[UUID, frozenset[int]]]:
    """All members subscribe to the same topics (``UniformHomogeneousAssignmentBuilder``): each keeps what it has up to
    its quota, and those below their quota get the rest."""
    if not members:
        return []
    topics = sorted(members[0].topics)
    owned: dict[UUID, set[int]] = {topic: set() for topic in topics}
    for assignment in kept:
        for topic, numbers in assignment.items():
            owned[topic] |= numbers
    unassigned = [
        (topic, number) for topic in topics for number in range(partitions[topic]) if number not in owned[topic]
    ]
    minimum, larger = divmod(sum(partitions[topic] for topic in topics), len(members))
    missing: list[int] = []
    for index, assignment in enumerate(kept):
        quota = minimum + (larger > 0)
        has_extra = larger > 0
        for topic in sorted(assignment):
            numbers = assignment[topic]
            if len(numbers) > quota:
                ordered = sorted(numbers)
                unassigned += [(topic, number) for number in ordered[quota:]]
                assignment[topic] = frozenset(ordered[:quota])
                if not quota:
                    del assignment[topic]
            quota = max(quota - len(numbers), 0)
        # The members that follow can take all larger quotas: who does not fill one now gets no partition for it.
        if quota and has_extra and len(members) - index > larger:
            quota, has_extra = quota - 1, False
        missing.append(quota)
        larger -= has_extra
    start = 0
    for assignment, quota in zip(kept, missing, strict=True):
        added: dict[UUID, set[int]] = {}
        for topic, number in unassigned[start : start + quota]:
            added.setdefault(topic, set()).add(number)
        for topic, more in added.items():
            assignment[topic] = assignment.get(topic, frozenset()) | more
        start += quota
    return kept


class _DifferentSubscriptions:
    """The uniform assignment of members that subscribe to different topics (``UniformHeterogeneousAssignmentBuilder``).

    Free partitions go to the subscriber with the fewest partitions of all. Then partitions of one topic after the other
    move from its most loaded to its least loaded subscribers, until no topic can improve or `_MAX_ROUNDS` are over.
    Members are known by their index.
    """

    def __init__(
        self,
        members: list[MemberSubscription],
        kept: list[dict[UUID, frozenset[int]]],
        partitions: Mapping[UUID, int],
    ) -> None:
        self._members = members
        self._subscribers: dict[UUID, list[int]] = {}
        for index, member in enumerate(members):
            for topic in member.topics:
                self._subscribers.setdefault(topic, []).append(index)
        self._sizes = [0] * len(members)
        self._owners = {topic: [_UNOWNED] * partitions[topic] for topic in self._subscribers}
        """The index of the member that has a partition."""
        for index, assignment in enumerate(kept):
            for topic, numbers in assignment.items():
                for number in numbers:
                    self._owners[topic][number] = index
                self._sizes[index] += len(numbers)

    def assign(self) -> list[dict[UUID, frozenset[int]]]:
        # The topics with the most partitions for a subscriber first, then those with fewer subscribers.
        topics = sorted(self._subscribers, key=self._topic_order)
        for topic in topics:
            self._assign_free(topic)
        self._balance([topic for topic in topics if len(self._subscribers[topic]) > 1])
        result: list[dict[UUID, set[int]]] = [{} for _ in self._members]
        for topic, owners in self._owners.items():
            for number, owner in enumerate(owners):
                result[owner].setdefault(topic, set()).add(number)
        return [{topic: frozenset(numbers) for topic, numbers in one.items()} for one in result]

    def _topic_order(self, topic: UUID) -> tuple[float, int, int, int]:
        subscribers = len(self._subscribers[topic])
        return -len(self._owners[topic]) / subscribers, subscribers, *_signed_halves(topic)

    def _give(self, topic: UUID, number: int, index: int) -> None:
        owners = self._owners[topic]
        if owners[number] != _UNOWNED:
            self._sizes[owners[number]] -= 1
        owners[number] = index
        self._sizes[index] += 1

    def _assign_free(self, topic: UUID) -> None:
        free = [number for number, owner in enumerate(self._owners[topic]) if owner == _UNOWNED]
        if free:
            queue = _Queue(self._subscribers[topic], self._sizes)
            for number in free:
                self._give(topic, number, queue.least_loaded())

    def _balance(self, topics: list[UUID]) -> None:
        last_changed = -1
        for _ in range(_MAX_ROUNDS):
            for place, topic in enumerate(topics):
                if place == last_changed:
                    return
                if self._balance_topic(topic) or last_changed < 0:
                    last_changed = place

    def _balance_topic(self, topic: UUID) -> int:
        """Return how many partitions moved."""
        queue = _Queue(self._subscribers[topic], self._sizes)
        if queue.imbalance <= 1:
            return 0
        left: dict[int, list[int]] = {}
        for number, owner in enumerate(self._owners[topic]):
            left.setdefault(owner, []).append(number)
        moved = 0
        while not queue.is_balanced():
            giver = queue.most_loaded(left)
            if giver is None:
                break
            number = left[giver].pop()
            taker = queue.least_loaded()
            if queue.is_balanced():
                break
            self._give(topic, number, taker)
            moved += 1
        return moved


class _Queue:
    """The subscribers of a topic by their number of partitions, read from both ends (``MemberAssignmentBalancer``).

    The least loaded form a range at the beginning: each is taken once, and then all of them have one partition more, so
    the range grows by those that had as many already. The most loaded form a range at the end in the same way.
    """

    def __init__(self, members: list[int], sizes: list[int]) -> None:
        self._sizes = sizes
        self._sorted = sorted(members, key=lambda index: (sizes[index], index))
        least, most = sizes[self._sorted[0]], sizes[self._sorted[-1]]
        self.imbalance = most - least
        self._least_size, self._least_end, self._next_least = least - 1, 0, 0
        self._most_size, self._next_most = most + 1, len(self._sorted) - 1
        self._most_start = self._most_end = len(self._sorted)

    def is_balanced(self) -> bool:
        return self._most_size - self._least_size <= 1

    def least_loaded(self) -> int:
        """Take the next of the least loaded members, which gets a partition."""
        if self._next_least >= self._least_end:
            self._least_size += 1
            while self._least_end < len(self._sorted) and self._size_at(self._least_end) == self._least_size:
                self._least_end += 1
            self._next_least = 0
        self._next_least += 1
        return self._sorted[self._next_least - 1]

    def most_loaded(self, left: Mapping[int, list[int]]) -> int | None:
        """Take the next of the most loaded members that have a partition ``left`` to give away; the others leave the
        range. None if there is none."""
        while (index := self._next_most_loaded()) is not None:
            if left.get(index):
                return index
            position = self._next_most + 1
            self._most_end -= 1
            last = self._most_end
            self._sorted[position], self._sorted[last] = self._sorted[last], self._sorted[position]
        return None

    def _next_most_loaded(self) -> int | None:
        if self._next_most < self._most_start:
            if self._most_end <= self._most_start and self._most_start > 0:
                self._most_size = self._size_at(self._most_start - 1)
            else:
                self._most_size -= 1
            while self._most_start > 0 and self._size_at(self._most_start - 1) == self._most_size:
                self._most_start -= 1
            self._next_most = self._most_end - 1
        if self._next_most < 0:
            return None
        self._next_most -= 1
        return self._sorted[self._next_most + 1]

    def _size_at(self, position: int) -> int:
        return self._sizes[self._sorted[position]]


def _signed_halves(topic: UUID) -> tuple[int, int]:
    """Kafka's ``Uuid.compareTo`` compares two signed longs."""
    high, low = topic.int >> 64, topic.int & ((1 << 64) - 1)
    return high - (high >> 63 << 64), low - (low >> 63 << 64)


ASSIGNORS: Final[
    Mapping[
        str,
        Callable[[Mapping[str, MemberSubscription], Mapping[UUID, int], bool], dict[str, dict[UUID, frozenset[int]]]],
    ]
] = {UNIFORM: _uniform, RANGE: _range}
"""By name; the first one is the default of ``group.consumer.assignors``."""
