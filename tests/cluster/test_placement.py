"""Placement of replicas: Kafka's own examples, and properties of all placements."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.cluster.placement import InvalidReplicationFactorError, place
from tests.cases import case


class Zeros(Random):
    """Draws only zeros: Kafka's tests fix the first broker and the first shift."""

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        del start, stop, step
        return 0


def test_kafkas_example() -> None:
    """``AdminUtilsTest.testReplicaAssignment``."""
    assert place(dict.fromkeys(range(5)), 10, 3, Zeros()) == [
        (0, 1, 2), (1, 2, 3), (2, 3, 4), (3, 4, 0), (4, 0, 1), (0, 2, 3), (1, 3, 4), (2, 4, 0), (3, 0, 1), (4, 1, 2),
    ]  # fmt: skip


@given(racks=st.lists(st.integers(0, 3), min_size=1, max_size=9), partitions=st.integers(1, 40), data=st.data())
def test_placement_is_balanced_and_spread_over_racks(racks: list[int], partitions: int, data: st.DataObject) -> None:
    case()
    has_racks = data.draw(st.booleans())
    brokers = {number * 3: f"r{rack}" if has_racks else None for number, rack in enumerate(racks)}
    factor = data.draw(st.integers(1, len(brokers)))
    placed = place(brokers, partitions, factor, Random(data.draw(st.integers(0, 99))))
    assert len(placed) == partitions
    assert all(len(set(replicas)) == factor and set(replicas) <= set(brokers) for replicas in placed)
    leaders = Counter(replicas[0] for replicas in placed)
    assert max(leaders.values()) - min(leaders[node] for node in brokers) <= 1
    if has_racks:
        wanted = min(factor, len(set(brokers.values())))
        assert all(len({brokers[node] for node in replicas}) == wanted for replicas in placed)


def test_a_leaders_followers_are_spread_over_all_others() -> None:
    placed = place(dict.fromkeys(range(4)), 12, 2, Random(1))
    followers = Counter(replicas for replicas in placed)
    assert all(count == 1 for count in followers.values())


def test_more_partitions_go_on_where_the_first_ended() -> None:
    brokers = dict.fromkeys(range(3))
    assert place(brokers, 2, 2, Zeros(), first=4) == [(1, 2), (2, 0)]


@pytest.mark.parametrize(("factor", "why"), [(0, "larger than 0"), (4, r"only 3 broker\(s\) are registered")])
def test_too_many_or_too_few(factor: int, why: str) -> None:
    with pytest.raises(InvalidReplicationFactorError, match=why):
        place(dict.fromkeys(range(3)), 1, factor, Random(1))
