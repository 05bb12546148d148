"""Plans of replica moves: properties of every plan, checked against each move that was possible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.cluster.placement import place as place_anew
from seglog.cluster.reassignment_plan import Place, ReplicaMove, TooFewBrokersError, evacuate, resize, spread
from tests.cases import case

Layout = dict[Place, tuple[int, ...]]
_RACKS: list[list[str | None]] = [[None], ["a"], ["a", "b"], ["a", "b", "c"]]


@st.composite
def layouts(draw: st.DrawFn, *, least: int = 1) -> tuple[Layout, dict[int, str | None]]:
    """Topics as a cluster of these brokers would have placed them, or at random; the brokers and their racks."""
    racks: list[str | None] = draw(st.sampled_from(_RACKS))
    nodes = draw(st.lists(st.integers(1, 20), min_size=least, max_size=7, unique=True))
    there: dict[int, str | None] = {node: racks[at % len(racks)] for at, node in enumerate(nodes)}
    layout: Layout = {}
    rng = Random(draw(st.integers(0, 1 << 30)))
    for name in draw(st.lists(st.sampled_from("tuvw"), max_size=3, unique=True)):
        factor = draw(st.integers(1, min(3, len(nodes))))
        count = draw(st.integers(1, 15))
        if draw(st.booleans()):
            placed: Sequence[tuple[int, ...]] = place_anew(there, count, factor, rng)
        else:
            placed = [tuple(rng.sample(nodes, factor)) for _ in range(count)]
        layout.update({(name, number): replicas for number, replicas in enumerate(placed)})
    return layout, there


def after(layout: Layout, moves: Sequence[ReplicaMove]) -> Layout:
    for move in moves:
        assert layout[move.place] == move.before != move.after
    return {**layout, **{move.place: move.after for move in moves}}


def loads(layout: Layout) -> Counter[int]:
    return Counter(node for replicas in layout.values() for node in replicas)


def leads(layout: Layout) -> Counter[int]:
    return Counter(replicas[0] for replicas in layout.values())


def distinct(replicas: Sequence[int], racks: Mapping[int, str | None]) -> int:
    """The racks of a partition; without racks all placements are equal."""
    return 0 if None in racks.values() else len({racks.get(node, str(node)) for node in replicas})


def check_whole(before: Layout, now: Layout, there: Mapping[int, str | None]) -> None:
    assert before.keys() == now.keys()
    for place, replicas in now.items():
        assert len(replicas) == len(set(replicas)) == len(before[place])
        if place in before and replicas != before[place]:
            assert set(replicas) <= {*there, *before[place]}


@given(layouts(), st.integers(1, 3), st.sampled_from([None, "a", "b", "new"]))
def test_new_brokers_get_their_share_and_nothing_else_moves(
    drawn: tuple[Layout, dict[int, str | None]], count: int, rack: str | None
) -> None:
    case()
    layout, there = drawn
    if None in there.values():
        rack = None
    new = list(range(100, 100 + count))
    there |= dict.fromkeys(new, rack)
    now = after(layout, spread(layout, there, new))
    check_whole(layout, now, there)
    load = loads(now)
    fair = sum(load.values()) // len(there)
    for place, replicas in now.items():
        assert set(replicas) - set(layout[place]) <= set(new)
        assert distinct(replicas, there) >= distinct(layout[place], there)
    assert all(load[node] <= fair for node in new)
    assert all(load[node] >= min(fair, loads(layout)[node]) for node in there)
    for node in new:  # no move is left that could have been made
        if load[node] < fair:
            for replicas in now.values():
                for donor in {*replicas} - {*new}:
                    if node not in replicas and load[donor] > fair:
                        swapped = [node if one == donor else one for one in replicas]
                        assert distinct(swapped, there) < distinct(replicas, there)
    lead = leads(now)
    share = len(layout) // len(there)
    for node in new:
        if lead[node] < share:
            assert not [replicas for replicas in now.values() if node in replicas and lead[replicas[0]] > share]


@given(layouts(least=2))
def test_a_second_spread_moves_nothing(drawn: tuple[Layout, dict[int, str | None]]) -> None:
    case()
    layout, there = drawn
    there[100] = "a" if None not in there.values() else None
    now = after(layout, spread(layout, there, [100]))
    assert spread(now, there, [100]) == []


@given(layouts(least=2), st.booleans())
def test_a_broker_is_emptied_and_nothing_else_moves(
    drawn: tuple[Layout, dict[int, str | None]], is_there: bool
) -> None:
    case()
    layout, there = drawn
    gone = min(there)
    known = there if is_there else {node: rack for node, rack in there.items() if node != gone}
    left = {node: rack for node, rack in there.items() if node != gone}
    too_few = [place for place, replicas in layout.items() if gone in replicas and len(replicas) > len(left)]
    if too_few:
        with pytest.raises(TooFewBrokersError, match=f"{too_few and min(too_few)[0]}-"):
            evacuate(layout, known, gone)
        return
    now = after(layout, evacuate(layout, known, gone))
    check_whole(layout, now, left)
    assert all(gone not in replicas for replicas in now.values())
    for place, replicas in now.items():
        if gone not in layout[place]:
            assert replicas == layout[place]
            continue
        stayed = set(layout[place]) - {gone}
        assert stayed < set(replicas)
        best = max(distinct([*stayed, node], there) for node in left if node not in layout[place])
        assert distinct(replicas, there) == best
        if layout[place][0] != gone:
            assert replicas[0] == layout[place][0]


def test_a_fourth_broker_of_an_even_cluster() -> None:
    nodes: dict[int, str | None] = {1: None, 2: None, 3: None}
    layout = {("t", number): replicas for number, replicas in enumerate(place_anew(nodes, 40, 3, Random(1)))}
    moves = spread(layout, {**nodes, 4: None}, [4])
    now = after(layout, moves)
    assert loads(now) == {1: 30, 2: 30, 3: 30, 4: 30}
    assert leads(now) == {1: 10, 2: 10, 3: 10, 4: 10}
    assert sum(len(move.adding) for move in moves) == 30


def test_partitions_of_a_removed_broker_are_led_by_existing_replicas() -> None:
    layout: Layout = {("t", number): (9, 1, 2) for number in range(4)}
    now = after(layout, evacuate(layout, {1: None, 2: None, 3: None, 9: None}, 9))
    assert all(set(replicas) == {1, 2, 3} for replicas in now.values())
    assert sorted(leads(now).values()) == [1, 1, 2]
    assert now["t", 0][0] == 1


@given(layouts(), st.integers(1, 8), st.data())
def test_topics_get_another_number_of_replicas(
    drawn: tuple[Layout, dict[int, str | None]], factor: int, data: st.DataObject
) -> None:
    case()
    layout, there = drawn
    gone = set(data.draw(st.lists(st.sampled_from(sorted(there)), max_size=1)))
    left = {node: rack for node, rack in there.items() if node not in gone}
    of = [place for place in layout if place[0] != "u"]
    in_sync = {place: data.draw(st.sets(st.sampled_from(layout[place]))) for place in of}
    if factor > len(left):
        with pytest.raises(TooFewBrokersError, match=f"{factor} replicas need as many brokers"):
            resize(layout, left, factor, of=of, in_sync=in_sync)
        return
    now = after(layout, resize(layout, left, factor, of=of, in_sync=in_sync))
    for place, replicas in now.items():
        before = layout[place]
        if place not in of:
            assert replicas == before
            continue
        assert len(set(replicas)) == len(replicas) == factor
        if factor >= len(before):
            assert replicas[: len(before)] == before, "nothing moves that need not"
            continue
        assert set(replicas) < set(before)
        kept, dropped = set(replicas), set(before) - set(replicas)
        assert not kept & gone or dropped <= gone, "the first to go are those of brokers that are gone"
        serving = kept - gone
        assert not (serving - in_sync[place]) or not (dropped - gone) & in_sync[place], "then those out of sync"
        if before[0] in left and before[0] in in_sync[place]:
            assert replicas[0] == before[0]
