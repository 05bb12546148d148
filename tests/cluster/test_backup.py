"""Backups of a metadata store, an older store that is accepted, and one that is rebuilt from log directories."""

from __future__ import annotations

import json
from dataclasses import replace
from uuid import UUID

import pytest

from seglog.cluster.backup import (
    CLUSTER,
    PRODUCER_IDS,
    InvalidBackupError,
    accepted,
    decode_backup,
    encode_backup,
    restored,
    take_backup,
)
from seglog.cluster.formats import BROKER_EPOCHS
from seglog.cluster.model import (
    GENERATION,
    GENERATION_BASE,
    NO_LEADER,
    Member,
    PartitionState,
    TopicState,
    decode_partition,
    decode_topic,
    encode,
    generation_of,
    partition_name,
    topic_name,
)
from seglog.cluster.rebuild import FoundReplica, rebuild
from seglog.cluster.store import MISSING, StoreError, VersionedValue

ONE, TWO = UUID(int=1), UUID(int=2)
NOW_MS = 1_700_000_000_000
STATE = PartitionState(replicas=(1, 2), leader=1, leader_epoch=7, isr=(Member(1, 3), Member(2, 4)), min_insync=2)
VALUES = {
    CLUSTER: VersionedValue(b'{"cluster.id": "xtz"}', 0),
    GENERATION: VersionedValue(b"0", 41),
    GENERATION_BASE: VersionedValue(b"100", 0),
    BROKER_EPOCHS: VersionedValue(b"4", 3),
    PRODUCER_IDS: VersionedValue(b"2000", 1),
    "odd": VersionedValue(b"\xff\x00", 9),
    topic_name("t"): VersionedValue(encode(TopicState(name="t", topic_id=ONE, assignment=((1, 2),))), 0),
    partition_name(ONE, 0): VersionedValue(encode(STATE), 5),
    "brokers/1": VersionedValue(b"{}", 0),
    "speaks/1": VersionedValue(b"{}", 0),
    "controller": VersionedValue(b"{}", 0),
}


def test_a_backup_is_read_as_it_was_written_and_damage_is_named() -> None:
    backup = take_backup(VALUES, NOW_MS)
    assert (backup.cluster_id, backup.generation) == ("xtz", 141)
    assert backup.values.keys() == VALUES.keys() - {"brokers/1", "speaks/1", "controller"}
    data = encode_backup(backup)
    assert decode_backup(data, "f") == backup
    with pytest.raises(StoreError, match="no cluster"):
        take_backup({}, NOW_MS)
    for wrong in (data[:-20], b"[]", data.replace(b"2000", b"2001"), json.dumps({"form": 9, "values": {}}).encode()):
        with pytest.raises(InvalidBackupError, match=r"^f (is|has) "):
            decode_backup(wrong, "f")


def test_an_older_store_that_is_accepted_believes_no_isr_and_gives_out_no_number_again() -> None:
    steps = list(accepted(VALUES, NOW_MS))
    after = VALUES | {one.name: VersionedValue(one.value or b"", 0) for one in steps}
    state = decode_partition("p", after[partition_name(ONE, 0)].value)
    assert (state.leader, state.isr, state.elr, state.last_known_nodes) == (NO_LEADER, (), (), (1, 2))
    assert state.leader_epoch > 7 + 1000
    state.check()
    assert int(after[BROKER_EPOCHS].value) > 4 + 1000
    assert int(after[PRODUCER_IDS].value) > 2000 + 1000
    assert steps[-1].name == GENERATION_BASE, "brokers accept it when all else is done"
    assert generation_of(after) > generation_of(VALUES) + (1 << 31)
    again = {one.name: one.value for one in accepted(VALUES, NOW_MS + 60_000)}
    accepted_again = decode_partition("p", again[partition_name(ONE, 0)] or b"")
    assert accepted_again.leader_epoch == state.leader_epoch + 60, "above the elections between"
    for name in (GENERATION_BASE, BROKER_EPOCHS, PRODUCER_IDS):
        assert int(again[name] or b"") > int(after[name].value), "of one copy that is accepted a second time"


def test_a_partition_of_an_older_store_is_not_new() -> None:
    """It may have been written since: emptied replicas must not start it again."""
    name = partition_name(ONE, 0)
    state = replace(STATE, is_new=True)
    steps = {one.name: one.value for one in accepted(VALUES | {name: VersionedValue(encode(state), 5)}, NOW_MS)}
    assert not decode_partition(name, steps[name] or b"").is_new
    rebuilt = rebuild("xtz", [found("t", ONE, 0, 1)], NOW_MS)
    assert not decode_partition(name, rebuilt.values[name]).is_new


def test_a_restored_store_has_the_generation_of_the_backup() -> None:
    steps = list(restored(take_backup(VALUES, NOW_MS), NOW_MS))
    assert {one.version for one in steps} == {MISSING}
    assert steps[-1].name == CLUSTER, "no broker begins before the rest is there"
    after = {one.name: VersionedValue(one.value or b"", 0) for one in steps}
    assert generation_of(after) == 141
    assert after.keys() == VALUES.keys() - {"brokers/1", "speaks/1", "controller"} | {"epochs/controller"}
    assert decode_partition("p", after[partition_name(ONE, 0)].value).isr == ()


def found(topic: str, topic_id: UUID, number: int, node: int, epoch: int = 3) -> FoundReplica:
    return FoundReplica(topic, topic_id, number, node, f"/d{node}/{topic}-{number}", epoch, {}, generation=17)


def test_store_is_rebuilt_from_replicas_and_lists_its_guesses() -> None:
    replicas = [
        found("t", ONE, 0, 1, epoch=3),
        found("t", ONE, 0, 2, epoch=9),
        found("t", ONE, 2, 1),
        replace_stray(found("t", ONE, 0, 3, epoch=50)),
        replace_stray(found("gone", TWO, 0, 3)),
        replace_stray(found("t", TWO, 0, 3, epoch=99)),
    ]
    rebuilt = rebuild("xtz", replicas, NOW_MS)
    topic = decode_topic("t", rebuilt.values[topic_name("t")])
    assert (topic.topic_id, topic.assignment[0], topic.assignment[2]) == (ONE, (1, 2), (1,))
    state = decode_partition("p", rebuilt.values[partition_name(ONE, 0)])
    assert (state.leader_epoch, state.last_known_nodes, state.isr) == (51, (1, 2), ())
    assert partition_name(ONE, 1) not in rebuilt.values
    values = {name: VersionedValue(value, 0) for name, value in rebuilt.values.items()}
    assert generation_of(values) == 18
    told = "\n".join(rebuilt.guesses)
    assert "t: no directory has partitions 1" in told
    assert "gone: only strays have it" in told
    assert f"id {ONE} continues; set aside: /d3/t-0" in told
    assert "config/brokers" in told


def replace_stray(replica: FoundReplica) -> FoundReplica:
    return replica._replace(is_stray=True)


def test_a_reassignment_that_was_under_way_stays_one() -> None:
    moving = replace(STATE, replicas=(1, 2, 3), adding=(3,))
    values = VALUES | {partition_name(ONE, 0): VersionedValue(encode(moving), 5)}
    (state,) = [decode_partition("p", one.value or b"") for one in accepted(values, NOW_MS) if "partitions" in one.name]
    assert (state.adding, state.last_known_nodes) == ((3,), (1, 2, 3))
