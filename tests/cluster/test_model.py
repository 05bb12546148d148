"""The values of a cluster as text in the store."""

from __future__ import annotations

import json
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.cluster.model import (
    MOST_REASON,
    MOST_REFUSALS,
    NO_LEADER,
    BrokerRegistration,
    ElectionKind,
    Evidence,
    InvalidStateError,
    Member,
    PartitionState,
    Recovery,
    Refusal,
    TopicState,
    decode_broker,
    decode_partition,
    decode_refusals,
    decode_topic,
    encode,
    encode_refusals,
    offline_name,
    parse_partition_name,
    partition_name,
    with_refusals,
)
from tests.cases import case

_NODES = st.integers(0, 2**31 - 1)
_EPOCHS = st.integers(0, 2**62)
_MEMBERS = st.lists(st.builds(Member, _NODES, _EPOCHS), max_size=4).map(tuple)
_SEVERAL = st.lists(_NODES, max_size=4).map(tuple)

_STATES = st.builds(
    PartitionState,
    replicas=_SEVERAL,
    leader=_NODES | st.just(NO_LEADER),
    leader_epoch=_NODES,
    isr=_MEMBERS,
    min_insync=st.integers(1, 5),
    elr=_MEMBERS,
    last_known=_MEMBERS,
    adding=_SEVERAL,
    removing=_SEVERAL,
    left=_MEMBERS,
    evidence=st.lists(
        st.builds(Evidence, _NODES, _EPOCHS, st.text(max_size=5), *[st.integers(-1, 2**62)] * 8), max_size=3
    ).map(tuple),
    unclean_epoch=st.integers(-1, 2**31 - 1),
    recovery=st.none() | st.builds(Recovery, _NODES, _NODES, st.sampled_from(ElectionKind), _EPOCHS, _EPOCHS),
)
_BROKERS = st.builds(
    BrokerRegistration,
    node_id=_NODES,
    epoch=_EPOCHS,
    kept_since=_EPOCHS,
    listeners=st.dictionaries(st.text(max_size=8), st.text(max_size=20), max_size=2),
    rack=st.none() | st.text(max_size=5),
    is_stopping=st.booleans(),
    directories=st.lists(st.text(max_size=8), max_size=2).map(tuple),
    offline=st.lists(st.text(max_size=8), max_size=2).map(tuple),
    reports=st.booleans(),
)
_TOPICS = st.builds(
    TopicState,
    name=st.text(max_size=8),
    topic_id=st.uuids(),
    assignment=st.lists(_SEVERAL, max_size=3).map(tuple),
    config=st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=2),
)


@given(state=_STATES, broker=_BROKERS, topic=_TOPICS)
def test_encoded_values_decode_to_the_same_values(
    state: PartitionState, broker: BrokerRegistration, topic: TopicState
) -> None:
    case()
    assert decode_partition("p", encode(state)) == state
    assert decode_broker("b", encode(broker)) == broker
    assert decode_topic("t", encode(topic)) == topic


def test_state_from_before_there_was_evidence_is_read() -> None:
    """A candidate without an epoch proves nothing, whatever it has."""
    told = json.loads(encode(PartitionState(replicas=(1,), leader=NO_LEADER, leader_epoch=3, isr=())))
    for name in ("evidence", "unclean_epoch", "recovery"):
        del told[name]
    told["last_known"] = [1]
    state = decode_partition("p", json.dumps(told).encode())
    assert (state.last_known, state.evidence, state.unclean_epoch) == ((Member(1, -1),), (), -1)


def test_refusals_of_a_broker_are_read_as_far_as_a_value_may_be_long() -> None:
    plain = BrokerRegistration(node_id=1, epoch=2, kept_since=2)
    names = [offline_name(UUID(int=7), number) for number in range(MOST_REFUSALS + 5)]
    refused = {name: Refusal("x" * 5_000, f"/logs/{name}", is_damaged=False) for name in names}
    found = decode_broker("brokers/1", encode(with_refusals(plain, refused)))
    assert len(found.refused) == MOST_REFUSALS
    assert found.refused[names[0]] == Refusal("x" * MOST_REASON, f"/logs/{names[0]}", is_damaged=False)
    assert len(encode(found)) < 1 << 19, "ZooKeeper takes values of 1 MiB"
    told = json.loads(encode(found))
    told["refused"][names[0]].append("of a later release")
    assert decode_broker("brokers/1", json.dumps(told).encode()) == found
    del told["refused"]
    assert decode_broker("brokers/1", json.dumps(told).encode()).refused == {}
    assert decode_refusals(encode_refusals(refused)) == refused
    assert decode_refusals("of another software") == {}


def test_recovery_of_an_empty_partition_loses_nothing() -> None:
    empty = Recovery(3, 1, ElectionKind.LONGEST, 0, 0)
    assert "may be missing" not in str(empty)
    assert str(empty).endswith("No replica has reported a record")
    assert "records from there on may be missing" in str(empty._replace(furthest=1))
    assert "records from there on may be missing" in str(empty._replace(end=-1))


def test_broker_with_more_to_say_is_read() -> None:
    told = {**json.loads(encode(BrokerRegistration(node_id=1, epoch=2, kept_since=1))), "of_a_later_seglog": 1}
    assert decode_broker("b", json.dumps(told).encode()) == BrokerRegistration(node_id=1, epoch=2, kept_since=1)


@given(st.binary(max_size=30) | st.recursive(st.none() | st.integers() | st.text(max_size=3), st.lists).map(json.dumps))
def test_anything_else_is_named(data: bytes | str) -> None:
    case()
    raw = data.encode() if isinstance(data, str) else data
    for decode in (decode_broker, decode_partition, decode_topic):
        with pytest.raises(InvalidStateError, match="partitions/x/1"):
            decode("partitions/x/1", raw)


def test_a_later_form_is_refused() -> None:
    later = encode(PartitionState(replicas=(1,), leader=1, leader_epoch=0, isr=())).replace(b'"form":1', b'"form":2')
    with pytest.raises(InvalidStateError, match="has form 2: a later seglog wrote it"):
        decode_partition("p", later)


def test_names_of_partitions() -> None:
    topic_id = UUID(int=5)
    assert parse_partition_name(partition_name(topic_id, 3)) == (topic_id, 3)
    for name in ("partitions/x/1", "partitions/1", f"partitions/{topic_id}/x"):
        with pytest.raises(InvalidStateError, match=name):
            parse_partition_name(name)
