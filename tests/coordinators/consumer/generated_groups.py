"""Random consumer groups, as an assignor sees them, and random changes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from uuid import UUID

from seglog.coordinators.consumer.assignors import MemberSubscription

Targets = Mapping[str, Mapping[UUID, frozenset[int]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """``partitions`` has all topics; members are in the order of their ids."""

    members: Mapping[str, MemberSubscription]
    partitions: Mapping[UUID, int]

    @property
    def is_homogeneous(self) -> bool:
        return len({member.topics for member in self.members.values()}) <= 1

    def assigned(self, targets: Targets) -> Group:
        """The group with these targets as its assignment."""
        members = {name: replace(member, assigned=dict(targets[name])) for name, member in self.members.items()}
        return replace(self, members=members)


def group(random: Random, *, homogeneous: bool, small_ids: bool = True) -> Group:
    """A group without an assignment. Kafka walks topics with small ids in their order, others in that of a hash."""
    size = random.choice((1, 1, 2, 3, 5, 8, 20))
    topics = [UUID(int=number + 1 if small_ids else random.getrandbits(128)) for number in range(random.randint(1, 6))]
    partitions = {topic: random.choice((1, 1, 2, 3, 7, 16, 40)) for topic in topics}
    everything = frozenset(random.sample(topics, random.randint(1, len(topics))))
    members = {}
    for number in range(size):
        subscribed = everything if homogeneous else _some(random, topics)
        made = _member(random, f"m{number:03}", subscribed)
        members[made.member_id] = made
    return Group(members=dict(sorted(members.items())), partitions=partitions)


def changed(random: Random, before: Group, *, homogeneous: bool) -> Group:
    """The group after a few members have left or joined, topics have grown, or subscriptions have changed."""
    partitions = dict(before.partitions)
    members = dict(before.members)
    for _ in range(random.randint(1, 3)):
        what = random.randrange(4)
        if what == 0 and len(members) > 1:
            del members[random.choice(list(members))]
        elif what == 1:
            template = next(iter(members.values()))
            topics = template.topics if homogeneous else _some(random, list(partitions))
            made = _member(random, f"n{random.randrange(1000):03}", topics)
            members.setdefault(made.member_id, made)
        elif what == 2:
            topic = random.choice(list(partitions))
            partitions[topic] += random.randint(1, 9)
        else:
            topics = _some(random, list(partitions))
            chosen = list(members) if homogeneous else [random.choice(list(members))]
            members |= {name: replace(members[name], topics=topics) for name in chosen}
    return Group(members=dict(sorted(members.items())), partitions=partitions)


def _member(random: Random, name: str, topics: frozenset[UUID]) -> MemberSubscription:
    instance = f"i{random.randrange(10**6)}" if random.random() < 0.3 else None
    rack = random.choice((None, "a", "b"))
    return MemberSubscription(member_id=name, instance_id=instance, rack=rack, topics=topics, assigned={})


def _some(random: Random, topics: list[UUID]) -> frozenset[UUID]:
    return frozenset(random.sample(topics, random.randint(0, len(topics))))


def moved(before: Targets, after: Targets) -> int:
    """How many partitions members have that they had not before."""
    return sum(
        len(numbers - before.get(name, {}).get(topic, frozenset()))
        for name, topics in after.items()
        for topic, numbers in topics.items()
    )


def sizes(targets: Targets) -> dict[str, int]:
    """The number of partitions of each member."""
    return {name: sum(map(len, topics.values())) for name, topics in targets.items()}
