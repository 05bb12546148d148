"""Assignors by their promises, without Kafka; tests/interop/test_group_decisions.py compares them with Kafka's."""

from __future__ import annotations

from random import Random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.coordinators.consumer.assignors import ASSIGNORS, RANGE, UNIFORM, AssignorError, MemberSubscription, assign
from tests.cases import case
from tests.coordinators.consumer import generated_groups
from tests.coordinators.consumer.generated_groups import Group, Targets, moved, sizes

T, U = UUID(int=1), UUID(int=2)


def member(
    name: str, *topics: UUID, instance: str | None = None, assigned: dict[UUID, frozenset[int]] | None = None
) -> MemberSubscription:
    return MemberSubscription(member_id=name, instance_id=instance, topics=frozenset(topics), assigned=assigned or {})


def members(*all_of_them: MemberSubscription) -> dict[str, MemberSubscription]:
    return {one.member_id: one for one in all_of_them}


def check_is_whole(group: Group, targets: Targets) -> None:
    """Each partition of a topic with a subscriber has one owner, which subscribes to it."""
    owners: dict[tuple[UUID, int], str] = {}
    for name, topics in targets.items():
        for topic, numbers in topics.items():
            assert numbers
            assert topic in group.members[name].topics
            for number in numbers:
                assert owners.setdefault((topic, number), name) == name
    subscribed = {topic for one in group.members.values() for topic in one.topics}
    assert set(owners) == {(topic, number) for topic in subscribed for number in range(group.partitions[topic])}


@given(seed=st.integers(0, 2**32), homogeneous=st.booleans(), name=st.sampled_from(list(ASSIGNORS)))
def test_every_partition_has_one_owner_that_subscribes_to_it(seed: int, homogeneous: bool, name: str) -> None:
    random = Random(seed)
    group = generated_groups.group(random, homogeneous=homogeneous)
    for _ in range(4):
        case()
        targets = assign(name, group.members, group.partitions)
        assert list(targets) == list(group.members)
        check_is_whole(group, targets)
        again = assign(name, group.assigned(targets).members, group.partitions)
        if name == RANGE or group.is_homogeneous:
            assert again == targets
        group = generated_groups.changed(random, group.assigned(targets), homogeneous=homogeneous)


@given(seed=st.integers(0, 2**32))
def test_uniform_moves_only_what_balance_takes(seed: int) -> None:
    random = Random(seed)
    group = generated_groups.group(random, homogeneous=True)
    for _ in range(4):
        case()
        targets = assign(UNIFORM, group.members, group.partitions)
        counts = sorted(sizes(targets).values(), reverse=True)
        assert counts[0] - counts[-1] <= 1
        before = {name: one.assigned for name, one in group.members.items()}
        topics = next(iter(group.members.values())).topics
        # The largest quotas go to the members with the most partitions: that leaves the least to move.
        kept = sorted((sum(len(n) for t, n in of.items() if t in topics) for of in before.values()), reverse=True)
        assert moved(before, targets) == sum(max(0, count - had) for count, had in zip(counts, kept, strict=True))
        group = generated_groups.changed(random, group.assigned(targets), homogeneous=True)


def test_range_divides_topics_with_equally_many_partitions_alike() -> None:
    targets = assign(RANGE, members(member("b", T, U), member("a", T, U), member("c", T, U)), {T: 7, U: 7})
    assert {name: of[T] for name, of in targets.items()} == {
        "a": frozenset({0, 1, 2}),
        "b": frozenset({3, 4}),
        "c": frozenset({5, 6}),
    }
    assert all(of[T] == of[U] for of in targets.values())


def test_range_has_static_members_first_by_their_instance() -> None:
    targets = assign(RANGE, members(member("a", T), member("b", T, instance="z"), member("c", T, instance="y")), {T: 3})
    assert [targets[name][T] for name in "cba"] == [{0}, {1}, {2}]


def test_a_member_more_than_partitions_gets_none() -> None:
    both = members(member("a", T), member("b", T))
    assert assign(RANGE, both, {T: 1}) == {"a": {T: {0}}, "b": {}}
    assert assign(UNIFORM, both, {T: 1}) == {"a": {}, "b": {T: {0}}}


def test_a_group_without_members_or_topics_has_no_assignment() -> None:
    for name in ASSIGNORS:
        assert assign(name, {}, {T: 1}) == {}
        assert assign(name, members(member("a")), {T: 1}) == {"a": {}}


def test_uniform_balances_members_with_different_topics() -> None:
    targets = assign(UNIFORM, members(member("a", T), member("b", T, U), member("c", U)), {T: 2, U: 4})
    assert sizes(targets) == {"a": 2, "b": 2, "c": 2}


def test_a_topic_that_does_not_exist_is_refused() -> None:
    for name in ASSIGNORS:
        with pytest.raises(AssignorError, match="non-existent"):
            assign(name, members(member("a", T)), {})


def test_partitions_that_the_image_does_not_know_yet_are_dropped() -> None:
    old = {T: frozenset(range(4))}
    for others in ((member("b", T),), (member("b", T, U),)):
        targets = assign(UNIFORM, members(member("a", T, assigned=old), *others), {T: 2, U: 1})
        assert targets["a"].get(T, frozenset()) | targets["b"].get(T, frozenset()) == {0, 1}
