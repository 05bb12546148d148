"""Ends of leader epochs, as leaders of ours tell them, beside the checkpoint of the leader's log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import seglog
from seglog.client.cluster_connections import ClusterConnections
from seglog.client.leader_offsets import epoch_ends
from seglog.core.types import TopicPartition
from seglog.records.record import NewRecord, encode_batch
from seglog.storage.log.epochs import EpochEnd
from seglog.testing import Broker
from tests.client.produce.written import config

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
EPOCHS = {T0: ((0, 3), (2, 4), (5, 1)), T1: ((1, 2),)}
"""The leader epochs of a partition, and how many records each has."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    path = tmp_path_factory.mktemp("epochs") / "log"
    write(path)
    with Broker(copy_of=path) as running:
        yield running


def write(path: Path) -> None:
    with seglog.open(path) as directory:
        directory.create_topic("t", 3)
        for partition, epochs in EPOCHS.items():
            log = directory.log(*partition)
            for epoch, count in epochs:
                for _ in range(count):
                    log.append(bytes(encode_batch([NewRecord(b"v")])), leader_epoch=epoch)


@pytest.fixture
def cluster(broker: Broker) -> Iterator[ClusterConnections]:
    with ClusterConnections(config(broker.bootstrap)) as opened:
        yield opened
    broker.faults.clear()


def test_an_epoch_ends_where_the_next_one_begins(cluster: ClusterConnections) -> None:
    found = epoch_ends(cluster, {T0: [0, 2], T1: [1]})
    assert found == {T0: {0: EpochEnd(0, 3), 2: EpochEnd(2, 7)}, T1: {1: EpochEnd(1, 2)}}


def test_an_epoch_without_records_ends_with_the_one_before(cluster: ClusterConnections) -> None:
    assert epoch_ends(cluster, {T0: [1, 3, 4]}) == {T0: {1: EpochEnd(0, 3), 3: EpochEnd(2, 7), 4: EpochEnd(2, 7)}}
    assert epoch_ends(cluster, {T0: [99]})[T0][99].end_offset == -1


def test_a_partition_or_topic_that_does_not_exist_is_left_out(cluster: ClusterConnections) -> None:
    wanted = {T0: [0], TopicPartition("t", 9): [0], TopicPartition("none", 0): [0]}
    assert epoch_ends(cluster, wanted) == {T0: {0: EpochEnd(0, 3)}}


def test_a_partition_of_which_nothing_is_asked_is_left_out(cluster: ClusterConnections) -> None:
    assert epoch_ends(cluster, {T0: [], T2: []}) == {}
    assert epoch_ends(cluster, {}) == {}


def test_each_epoch_is_asked_for_once(broker: Broker, cluster: ClusterConnections) -> None:
    """As many requests as the partition with the most epochs needs."""
    third = broker.fail("OffsetForLeaderEpoch", error="UNKNOWN_SERVER_ERROR", nth=3)
    assert epoch_ends(cluster, {T0: [0, 2, 0, 2], T1: [1, 1]}) == {
        T0: {0: EpochEnd(0, 3), 2: EpochEnd(2, 7)},
        T1: {1: EpochEnd(1, 2)},
    }
    assert (third.seen, third.fired) == (2, 0)


@pytest.mark.parametrize("nth", [1, 2])
def test_a_leader_that_refuses_one_answer_is_left_out(broker: Broker, cluster: ClusterConnections, nth: int) -> None:
    broker.fail("OffsetForLeaderEpoch", error="NOT_LEADER_OR_FOLLOWER", nth=nth)
    assert T0 not in epoch_ends(cluster, {T0: [0, 2]})


def test_a_leader_that_dies_is_left_out(broker: Broker, cluster: ClusterConnections) -> None:
    broker.lose("OffsetForLeaderEpoch")
    assert epoch_ends(cluster, {T0: [0], T1: [1]}) == {}
    assert epoch_ends(cluster, {T0: [0]}) == {T0: {0: EpochEnd(0, 3)}}
