"""The controller's decisions, and the partitions that a broker cannot serve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from uuid import UUID

from seglog.cluster.controller_decisions import PartitionDecision, all_keys, balance, decide
from seglog.cluster.model import (
    NO_LEADER,
    BrokerRegistration,
    Member,
    MetadataImage,
    PartitionState,
    TopicRules,
    TopicState,
    VersionedState,
    of_partition,
    offline_name,
)
from tests.cases import case

ID, OTHER = UUID(int=7), UUID(int=8)
NODES = (1, 2, 3)


def brokers(*offline: tuple[int, UUID, int]) -> dict[int, BrokerRegistration]:
    def names(node: int) -> tuple[str, ...]:
        return tuple(offline_name(topic_id, number) for of, topic_id, number in offline if of == node)

    return {node: BrokerRegistration(node_id=node, epoch=node, kept_since=0, offline=names(node)) for node in NODES}


def state(*replicas: int, leader: int | None = None) -> PartitionState:
    return PartitionState(
        replicas=replicas,
        leader=replicas[0] if leader is None else leader,
        leader_epoch=4,
        isr=tuple(Member(node, node) for node in replicas),
        min_insync=1,
    )


def view(
    assignment: dict[UUID, list[tuple[int, ...]]],
    partitions: dict[tuple[UUID, int], PartitionState],
    there: dict[int, BrokerRegistration],
) -> MetadataImage:
    topics = {key: TopicState(name=str(key), topic_id=key, assignment=tuple(of)) for key, of in assignment.items()}
    return MetadataImage(
        there, topics, {key: VersionedState(one, 9) for key, one in partitions.items()}, lambda _: TopicRules()
    )


def test_a_broker_is_not_there_for_a_partition_on_a_failed_directory() -> None:
    there = brokers((1, ID, 0), (1, OTHER, 5))
    assert of_partition(there, (ID, 0)).keys() == {2, 3}
    assert of_partition(there, (ID, 1)) == there
    assert of_partition(brokers(), (ID, 0)).keys() == {1, 2, 3}
    seen = view({ID: [(1, 2, 3)] * 2}, {(ID, 0): state(1, 2, 3), (ID, 1): state(1, 2, 3)}, there)
    in_sync = (Member(2, 2), Member(3, 3))
    expected = replace(state(1, 2, 3, leader=2), leader_epoch=5, isr=in_sync, left=(Member(1, 1),))
    assert list(decide(seen)) == [PartitionDecision(ID, 0, expected, 9)]


def test_a_new_partition_is_not_given_to_a_failed_directory() -> None:
    (made,) = decide(view({ID: [(1, 2)]}, {}, brokers((1, ID, 0))))
    assert made.state is not None
    assert (made.state.leader, made.state.isr_nodes) == (2, (2,))
    assert list(decide(view({ID: [(1,)]}, {}, brokers((1, ID, 0))))) == []


def test_all_replicas_on_failed_directories_wait() -> None:
    seen = view({ID: [(1,)]}, {(ID, 0): state(1)}, brokers((1, ID, 0)))
    (made,) = decide(seen)
    assert made.state is not None
    assert (made.state.leader, made.state.elr) == (NO_LEADER, (Member(1, 1),))


def test_the_preferred_leader_is_not_preferred_on_a_failed_directory() -> None:
    partitions = {(ID, 0): state(1, 2, leader=2), (ID, 1): state(1, 2, leader=2)}
    assert [one.number for one in balance(view({ID: [(1, 2)] * 2}, partitions, brokers()))] == [0, 1]
    assert [one.number for one in balance(view({ID: [(1, 2)] * 2}, partitions, brokers((1, ID, 1))))] == [0]
    assert list(balance(view({ID: [(1, 2)] * 2}, partitions, {2: brokers()[2]}))) == []


def grown(there: Mapping[int, BrokerRegistration], start: PartitionState, replicas: int = 3) -> PartitionState | None:
    """Decide about the first partition of `ID`, created on broker 1 alone, with this number of replicas wanted."""
    rules = TopicRules(replicas=replicas)
    seen = view({ID: [(1,)]}, {(ID, 0): start}, dict(there))._replace(rules=lambda _: rules)
    decided = list(decide(seen))
    return decided[0].state if decided else None


def test_a_topic_made_too_early_gets_its_replicas_when_brokers_join() -> None:
    there = brokers()
    assert grown({1: there[1]}, state(1)) is None
    two = grown({node: there[node] for node in (1, 2)}, state(1))
    assert two is not None
    assert (two.replicas, two.adding, two.isr_nodes) == ((1, 2), (2,), (1,))
    assert grown(there, two) is None  # one move after the other
    in_sync = replace(two, isr=(*two.isr, Member(2, 2)))
    done = grown(there, in_sync)
    assert done is not None
    assert (done.replicas, done.adding) == ((1, 2), ())
    three = grown(there, done)
    assert three is not None
    assert (three.replicas, three.adding) == ((1, 2, 3), (3,))


def test_no_replicas_are_added_where_an_operator_has_moved_them_or_a_broker_stops() -> None:
    there = brokers()
    assert grown(there, state(1), replicas=0) is None
    assert grown(there, state(2)) is None
    stopping = {1: there[1], 2: replace(there[2], is_stopping=True)}
    assert grown(stopping, state(1)) is None
    racks = {1: replace(there[1], rack="a"), 2: replace(there[2], rack="a"), 3: replace(there[3], rack="b")}
    other_rack = grown(racks, state(1), replicas=2)
    assert other_rack is not None
    assert other_rack.replicas == (1, 3)


def test_a_part_is_decided_as_the_whole_is() -> None:
    """Any subset of the keys gives the same decisions; when they are written, nothing is left to decide."""
    rng = Random(5)
    for _ in range(100):
        case()
        assignment = {
            key: [tuple(rng.sample(NODES, rng.randrange(1, 4))) for _ in range(rng.randrange(1, 4))]
            for key in (ID, OTHER)
        }
        partitions = {
            (key, number): state(*rng.sample(NODES, 2))
            for key in (ID, OTHER, UUID(int=9))
            for number in range(4)
            if rng.random() < 0.5
        }
        there = {node: one for node, one in brokers((2, ID, 0)).items() if rng.random() < 0.7}
        seen = view(assignment, partitions, there)
        keys, whole = all_keys(seen), list(decide(seen))
        assert set(keys) >= partitions.keys()
        cut = rng.randrange(len(keys) + 1)
        assert [*decide(seen, keys[:cut]), *decide(seen, keys[cut:])] == whole
        for topic_id, number, made, version in whole:
            assert ((topic_id, number) in partitions) == (version is not None)
            if made is None:
                assert topic_id == UUID(int=9)
                del partitions[topic_id, number]
            else:
                made.check()
                partitions[topic_id, number] = made
        assert list(decide(view(assignment, partitions, there))) == []
