"""What the controller decides from all that it sees, and for which partitions a broker is not there."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from uuid import UUID

from seglog.cluster.controller import Decision, all_keys, balance, decide
from seglog.cluster.model import (
    NO_LEADER,
    Broker,
    Member,
    PartitionState,
    Stored,
    TopicRules,
    TopicState,
    View,
    of_partition,
    offline_name,
)
from tests.cases import case

ID, OTHER = UUID(int=7), UUID(int=8)
NODES = (1, 2, 3)


def brokers(*offline: tuple[int, UUID, int]) -> dict[int, Broker]:
    def names(node: int) -> tuple[str, ...]:
        return tuple(offline_name(topic_id, number) for of, topic_id, number in offline if of == node)

    return {node: Broker(node_id=node, epoch=node, kept_since=0, offline=names(node)) for node in NODES}


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
    there: dict[int, Broker],
) -> View:
    topics = {str(key): TopicState(name=str(key), topic_id=key, assignment=tuple(of)) for key, of in assignment.items()}
    return View(there, topics, {key: Stored(one, 9) for key, one in partitions.items()}, lambda _: TopicRules())


def test_a_broker_is_not_there_for_a_partition_on_a_failed_directory() -> None:
    there = brokers((1, ID, 0), (1, OTHER, 5))
    assert of_partition(there, (ID, 0)).keys() == {2, 3}
    assert of_partition(there, (ID, 1)) == there
    assert of_partition(brokers(), (ID, 0)).keys() == {1, 2, 3}
    seen = view({ID: [(1, 2, 3)] * 2}, {(ID, 0): state(1, 2, 3), (ID, 1): state(1, 2, 3)}, there)
    expected = replace(state(1, 2, 3, leader=2), leader_epoch=5, isr=(Member(2, 2), Member(3, 3)))
    assert list(decide(seen)) == [Decision(ID, 0, expected, 9)]


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


def test_a_part_is_decided_as_the_whole_is() -> None:
    """Any split into keys gives the same decisions; written, they leave nothing."""
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
