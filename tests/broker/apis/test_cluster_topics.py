"""Topics of a cluster: any broker makes them, grows them, configures and deletes them, and all see it. Answers are
Kafka's; those of three nodes of Kafka 4.4 are in `KAFKAS`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from seglog.broker.configuration import topic_rules
from seglog.broker.health import count_partitions
from seglog.cluster.cluster_view import ClusterView, ControllerRegistration, encode_controller
from seglog.cluster.model import (
    NO_LEADER,
    Member,
    PartitionState,
    TopicRules,
    TopicState,
    encode,
    offline_name,
    topic_name,
)
from seglog.core.broker_config import BrokerConfig
from seglog.protocol.apis import ApiKey
from tests.broker.cluster_desk import LISTENER, SOON, Desk, broker, run

ALL = (1, 2, 3)


def numbered(lists: list[list[int]]) -> list[dict[str, Any]]:
    return [{"partition_index": number, "broker_ids": one} for number, one in enumerate(lists)]


def test_a_topic_is_made_by_one_and_led_when_the_controller_has_seen_it(tmp_path: Path) -> None:
    async def work(desk: Desk, other: Desk) -> None:
        topics = [{"name": "t", "num_partitions": 6, "replication_factor": 3}]
        asked = asyncio.ensure_future(desk.ask(ApiKey.CREATE_TOPICS, topics=topics, timeout=60_000))
        assert await other.view.until(lambda: "t" in other.topics.by_name, SOON)
        found = await other.metadata("t")
        assert [(one.error_code, one.leader_id, one.leader_epoch) for one in found.partitions] == [(5, -1, -1)] * 6
        assert not asked.done()
        await other.decide()
        (made,) = (await asked).topics
        assert (made.error_code, made.num_partitions, made.replication_factor) == (0, 6, 3)
        found = await desk.metadata("t")
        assert [sorted(one.replica_nodes) for one in found.partitions] == [[1, 2, 3]] * 6
        assert sorted(one.leader_id for one in found.partitions) == [1, 1, 2, 2, 3, 3]
        assert [(one.error_code, one.leader_id) for one in found.partitions] == [
            (0, one.replica_nodes[0]) for one in found.partitions
        ]
        assert found.topic_id == made.topic_id == other.topics.by_name["t"].topic_id

    run(tmp_path, work, desks=2)


def test_without_a_controller_a_topic_is_created_all_the_same(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        topics = [{"name": "t", "num_partitions": 1, "replication_factor": 1}]
        answer = await desk.ask(ApiKey.CREATE_TOPICS, topics=topics, timeout=1)
        assert answer.topics[0].error_code == 0
        answer = await desk.ask(ApiKey.CREATE_TOPICS, topics=topics, timeout=1)
        assert (answer.topics[0].error_code, answer.topics[0].error_message) == (36, "Topic 't' already exists.")

    run(tmp_path, work)


def test_clients_send_changes_to_whom_they_ask_and_are_told_of_the_controller_too(tmp_path: Path) -> None:
    """librdkafka waits for a controller that has died for as long as its question may take (seen: 30 s)."""

    async def work(desk: Desk) -> None:
        await desk.store.create("controller", encode_controller(ControllerRegistration(2, 12, 7)))
        assert await desk.view.until(lambda: desk.view.controller is not None, SOON)
        assert (await desk.ask(ApiKey.METADATA, topics=[])).controller_id == 1
        assert (await desk.ask(ApiKey.DESCRIBE_CLUSTER, endpoint_type=1)).controller_id == 2
        await desk.dies(1)  # this one's own session, of which it has heard
        assert (await desk.ask(ApiKey.METADATA, topics=[])).controller_id == 2

    run(tmp_path, work)


ILLEGAL = ("bad/name", "..", "x" * 300, "a b", "ünï")


def is_new(desk: Desk) -> bool:
    """A broker may hear of a topic before it hears of its partitions."""
    topic = desk.topics.by_name.get("t")
    stored = None if topic is None else desk.view.partitions.get((topic.topic_id, 0))
    return stored is not None and stored.state.is_new


def test_a_leader_is_named_when_it_has_opened_its_log(tmp_path: Path) -> None:
    """A leader that refuses the first of two pipelined batches and takes the second leaves its producer stuck."""

    async def work(desk: Desk, other: Desk) -> None:
        await desk.create("t")
        made = desk.state("t")
        await desk.put("t", 0, replace(made, is_new=True))
        for one in (desk, other):
            assert await one.view.until(partial(is_new, one), SOON)
            (found,) = (await one.metadata("t")).partitions
            assert (found.error_code, found.leader_id) == (5, NO_LEADER)
        assert not await desk.changes.settled([desk.topics.by_name["t"]], 0.0)
        await desk.put("t", 0, made)
        assert await other.view.until(lambda: not other.state("t").is_new, SOON)
        (found,) = (await other.metadata("t")).partitions
        assert (found.error_code, found.leader_id) == (0, made.leader)
        assert await desk.changes.settled([desk.topics.by_name["t"]], 0.0)

    run(tmp_path, work, desks=2)


def test_metadata_creates_no_topic_of_an_illegal_name(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        answer = await desk.ask(
            ApiKey.METADATA, topics=[{"name": name} for name in ILLEGAL], allow_auto_topic_creation=True
        )
        assert [(one.error_code, one.name) for one in answer.topics] == [(17, name) for name in ILLEGAL]
        assert await desk.store.list("topics") == []

    run(tmp_path, work)


def test_a_store_with_illegal_names_serves_its_other_topics(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work(desk: Desk) -> None:
        for number, name in enumerate(one for one in ILLEGAL if len(one) <= 255):
            state = TopicState(name=name, topic_id=UUID(int=number + 1), assignment=((1,),))
            await desk.store.create(topic_name(name), encode(state))
        await desk.create("good")
        again = ClusterView(desk.store, lambda _: TopicRules())
        await again.start()
        assert list(again.topics) == ["good"]
        await again.stop()
        answer = await desk.ask(ApiKey.METADATA, topics=None)
        assert [one.name for one in answer.topics] == ["good"]

    run(tmp_path, work)
    assert "'bad/name' in the metadata store is not a legal topic name: no broker serves this topic" in caplog.text


def test_racks_have_one_replica_each(tmp_path: Path) -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c", 6: "c"}

    async def work(desk: Desk) -> None:
        await desk.create("t", partitions=12)
        await desk.ask(ApiKey.CREATE_PARTITIONS, topics=[{"name": "t", "count": 18, "assignments": None}], timeout=1)
        await desk.decide()
        found = (await desk.metadata("t")).partitions
        assert len(found) == 18
        assert all(sorted(racks[node] for node in one.replica_nodes) == ["a", "b", "c"] for one in found)
        assert sorted(one.leader_id for one in found) == sorted([*racks] * 3)

    run(tmp_path, work, brokers=[broker(node, rack) for node, rack in racks.items()])


WHAT = "The manual partition assignment includes"
TWO_AND_ONE = (
    f"{WHAT} a partition with 1 replica(s), but this is not consistent with previous partitions, which have 2 "
    "replica(s)."
)
STOPPING = (
    "All brokers specified in the manual partition assignment for partition 1 are fenced or in controlled shutdown."
)
KAFKAS: list[tuple[list[list[int]], str]] = [
    ([[1, 2], [1]], TWO_AND_ONE),
    ([[1, 9]], f"{WHAT} broker 9, but no such broker is registered."),
    ([[9, 9]], f"{WHAT} broker 9, but no such broker is registered."),
    ([[1, 1]], f"{WHAT} the broker 1 more than once."),
    ([[2, 1, 2]], f"{WHAT} the broker 2 more than once."),
    ([[]], f"{WHAT} an empty replica list."),
    ([[1], [3]], STOPPING),
]


def test_assignments_that_cannot_be(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        await desk.register(broker(3, is_stopping=True))
        for lists, why in KAFKAS:
            wanted = {"name": "t", "num_partitions": -1, "replication_factor": -1, "assignments": numbered(lists)}
            answer = await desk.ask(ApiKey.CREATE_TOPICS, topics=[wanted], timeout=1)
            assert (answer.topics[0].error_code, answer.topics[0].error_message) == (39, why)
            assert "t" not in desk.topics.by_name

    run(tmp_path, work)


def test_new_partitions_have_as_many_replicas_as_the_others(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        await desk.create("t", factor=2)

        async def grow(count: int, assignments: list[list[int]] | None) -> tuple[int, str | None]:
            told = None if assignments is None else [{"broker_ids": one} for one in assignments]
            topics = [{"name": "t", "count": count, "assignments": told}]
            (result,) = (await desk.ask(ApiKey.CREATE_PARTITIONS, topics=topics, timeout=1)).results
            return result.error_code, result.error_message

        assert await grow(2, [[1]]) == (39, TWO_AND_ONE)
        assert await grow(3, [[3, 1], [2, 3]]) == (0, None)
        await desk.decide()
        assert [desk.state("t", number).replicas for number in (1, 2)] == [(3, 1), (2, 3)]
        await desk.dies(3)
        await desk.dies(2)
        message = "The target replication factor of 2 cannot be reached because only 1 broker(s) are registered."
        assert await grow(4, None) == (38, message)

    run(tmp_path, work)


def test_a_broker_that_stops_gets_no_replicas(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        await desk.register(broker(2, is_stopping=True))
        await desk.create("t", partitions=6, factor=2)
        assert {node for number in range(6) for node in desk.state("t", number).replicas} == {1, 3}
        answer = await desk.ask(
            ApiKey.CREATE_TOPICS, topics=[{"name": "u", "num_partitions": 1, "replication_factor": 3}], timeout=1
        )
        message = (
            "Unable to replicate the partition 3 time(s): The target replication factor of 3 cannot be reached because "
            "only 2 broker(s) are registered."
        )
        assert (answer.topics[0].error_code, answer.topics[0].error_message) == (38, message)

    run(tmp_path, work)


def test_names_that_differ_in_dots_only_are_refused_by_all(tmp_path: Path) -> None:
    async def work(desk: Desk, other: Desk) -> None:
        await desk.create("a.b")
        refusals = []
        for one in (desk, other):  # the other may not have seen it yet
            topics = [{"name": "a_b", "num_partitions": 1, "replication_factor": 1}]
            answer = await one.ask(ApiKey.CREATE_TOPICS, topics=topics, timeout=1)
            refusals.append((answer.topics[0].error_code, answer.topics[0].error_message))
        assert refusals == [(17, "Topic 'a_b' collides with existing topic: a.b")] * 2

    run(tmp_path, work, desks=2)


def test_a_topic_is_deleted_for_all(tmp_path: Path) -> None:
    async def work(desk: Desk, other: Desk) -> None:
        await desk.create("t", partitions=2)
        assert await other.view.until(lambda: "t" in other.topics.by_name, SOON)
        old = other.topics.by_name["t"].topic_id
        answer = await other.ask(ApiKey.DELETE_TOPICS, topics=[{"name": "t"}], timeout=60_000)
        assert answer.responses[0].error_code == 0
        assert "t" not in other.topics.by_name
        assert await desk.view.until(lambda: "t" not in desk.topics.by_name, SOON)
        assert desk.deleted == other.deleted == ["t"]
        await desk.decide()
        assert await desk.view.until(lambda: not desk.view.partitions, SOON)
        await desk.create("t")
        assert await other.view.until(lambda: "t" in other.topics.by_name, SOON)
        answer = await other.ask(ApiKey.DELETE_TOPICS, topics=[{"topic_id": old, "name": None}], timeout=1000)
        assert answer.responses[0].error_code == 100

    run(tmp_path, work, desks=2)


def test_configurations_are_those_of_all(tmp_path: Path) -> None:
    async def work(desk: Desk, other: Desk) -> None:
        await desk.create("t", configs=[{"name": "retention.ms", "value": "5"}])
        assert await other.view.until(lambda: "t" in other.topics.by_name, SOON)
        changes = [
            {"name": "min.insync.replicas", "value": "2", "config_operation": 0},
            {"name": "retention.ms", "value": None, "config_operation": 1},
        ]
        resource = {"resource_type": 2, "resource_name": "t", "configs": changes}
        answer = await other.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, resources=[resource])
        assert answer.responses[0].error_code == 0
        assert other.topics.overrides("t") == {"min.insync.replicas": "2"}
        assert await desk.view.until(lambda: desk.topics.overrides("t") == {"min.insync.replicas": "2"}, SOON)
        await desk.decide()
        assert desk.state("t").min_insync == 2
        found = await desk.ask(ApiKey.LIST_CONFIG_RESOURCES, resource_types=[4])
        assert [one.resource_name for one in found.config_resources] == ["1", "2", "3"]

    run(tmp_path, work, desks=2)


def test_rules_of_leaders() -> None:
    given_ = {"min.insync.replicas": "2", "unclean.leader.election.enable": "true"}
    config = BrokerConfig.from_mapping({"log.dirs": "/x", **given_})

    def rules(name: str = "t", **overrides: str) -> TopicRules:
        keys = {key.replace("_", "."): value for key, value in overrides.items()}
        return topic_rules(TopicState(name=name, topic_id=UUID(int=1), assignment=(), config=keys), config)

    assert rules() == TopicRules(2, unclean=True)
    assert rules(min_insync_replicas="3") == TopicRules(3, unclean=True)
    assert rules(unclean_leader_election_enable="false") == TopicRules(2, unclean=False)
    assert rules(min_insync_replicas="of a later seglog") == TopicRules(2, unclean=True)
    for name in ("__consumer_offsets", "__transaction_state"):  # they grow as brokers join
        assert rules(name) == TopicRules(2, unclean=True, replicas=3)


def test_defaults_that_another_broker_changes_are_taken_up(tmp_path: Path) -> None:
    async def work(desk: Desk, other: Desk) -> None:
        effects: asyncio.Queue[BrokerConfig] = asyncio.Queue()
        following = asyncio.ensure_future(desk.configuration.follow(desk.view, desk.changes, effects.put_nowait))

        async def alter(key: str, value: str) -> BrokerConfig:
            change = {"name": key, "value": value, "config_operation": 0}
            resource = {"resource_type": 4, "resource_name": "", "configs": [change]}
            answer = await other.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, resources=[resource])
            assert answer.responses[0].error_code == 0
            return await effects.get()

        assert (await alter("max.connections", "77")).max_connections == 77
        assert (await alter("min.insync.replicas", "2")).directory.topics.min_insync_replicas == 2
        assert desk.directories[0].config.topics.min_insync_replicas == 2
        assert desk.configuration.of_cluster == other.configuration.of_cluster
        own = {"resource_type": 4, "resource_name": "1", "configs": [{"name": "max.connections", "value": "5"}]}
        assert (await desk.ask(ApiKey.ALTER_CONFIGS, resources=[own])).responses[0].error_code == 0
        assert (await alter("max.connections", "78")).max_connections == 5
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    run(tmp_path, work, desks=2)


def test_one_broker_has_no_minimum_of_its_own(tmp_path: Path) -> None:
    async def work(desk: Desk, _: Desk) -> None:
        for operation in (0, 1):
            change = {"name": "min.insync.replicas", "value": "2", "config_operation": operation}
            resource = {"resource_type": 4, "resource_name": "1", "configs": [change]}
            answer = (await desk.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, resources=[resource])).responses[0]
            message = "Broker-level min.insync.replicas cannot be altered while ELR is enabled."
            assert (answer.error_code, answer.error_message) == (40, message)
        assert not desk.configuration.of_broker

    run(tmp_path, work, desks=2, config={"cluster.store": "sqlite:metadata"})


def test_what_clients_are_told_of_leaders(tmp_path: Path) -> None:
    """As in ``KRaftMetadataCache``: for a leader that is gone, and for one that has no such listener."""

    async def work(desk: Desk) -> None:
        await desk.create("t")
        state = PartitionState(
            replicas=ALL, leader=2, leader_epoch=7, isr=(Member(2, 12), Member(1, 11)), elr=(), min_insync=2
        )
        await desk.put("t", 0, state)

        async def told(version: int = 13, listener: str = LISTENER) -> tuple[Any, ...]:
            (one,) = (await desk.metadata("t", version, listener=listener)).partitions
            assert (one.replica_nodes, one.isr_nodes) == (ALL, (2, 1))
            return one.error_code, one.leader_id, one.leader_epoch, one.offline_replicas

        assert await told() == (0, 2, 7, ())
        offline = f"{desk.topics.by_name['t'].topic_id}/0"
        await desk.register(broker(3, offline=(offline,)))
        assert await told() == (0, 2, 7, (3,))
        await desk.register(broker(1, listeners={LISTENER: "h:1", "OTHER": "[::1]:2"}))
        assert await told(listener="OTHER") == (72, -1, 7, (3,))
        (one,) = (await desk.metadata("t", 5, listener="OTHER")).partitions
        assert (one.error_code, one.leader_id) == (5, -1)
        answer = await desk.ask(ApiKey.METADATA, topics=[], listener="OTHER")
        assert [(one.node_id, one.host, one.port) for one in answer.brokers] == [(1, "::1", 2)]
        await desk.dies(2)
        assert await told() == (5, -1, 7, (2, 3))
        described = await desk.ask(
            ApiKey.DESCRIBE_TOPIC_PARTITIONS, topics=[{"name": "t"}], response_partition_limit=10, cursor=None
        )
        (one,) = described.topics[0].partitions
        assert (one.error_code, one.leader_id, one.leader_epoch) == (0, -1, 7)

    run(tmp_path, work)


def test_eligible_leaders_are_described(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        await desk.create("t")
        state = PartitionState(
            replicas=ALL,
            leader=2,
            leader_epoch=7,
            isr=(Member(2, 12),),
            min_insync=2,
            elr=(Member(1, 11),),
            last_known=(Member(3, 3),),
        )
        await desk.put("t", 0, state)
        described = await desk.ask(
            ApiKey.DESCRIBE_TOPIC_PARTITIONS, topics=[{"name": "t"}], response_partition_limit=10, cursor=None
        )
        (one,) = described.topics[0].partitions
        assert (one.isr_nodes, one.eligible_leader_replicas, one.last_known_elr) == ((2,), (1,), (3,))

    run(tmp_path, work)


def test_partitions_are_counted_for_metrics(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        await desk.create("t", partitions=4)
        mine = PartitionState(replicas=ALL, leader=1, leader_epoch=7, isr=(Member(1, 11),), min_insync=2)
        await desk.put("t", 0, mine)
        await desk.put("t", 1, replace(mine, isr=(Member(1, 11), Member(2, 12))))
        await desk.put("t", 2, replace(mine, leader=NO_LEADER, isr=()))
        await desk.put("t", 3, replace(mine, replicas=(2, 3), leader=2, isr=(Member(2, 12),)))
        counts = count_partitions(desk.topics, 1)
        assert counts == (3, 2, 2, 1, 0, 1, 4, 1)
        await desk.register(broker(1, offline=(offline_name(desk.topics.by_name["t"].topic_id, 2),)))
        assert count_partitions(desk.topics, 1) == counts._replace(offline=1)

    run(tmp_path, work)


def test_a_store_that_is_gone_is_a_reason_to_come_again(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        await desk.create("t")
        await desk.store.close()
        new = [{"name": "u", "num_partitions": 1, "replication_factor": 1}]
        assert (await desk.ask(ApiKey.CREATE_TOPICS, topics=new, timeout=1)).topics[0].error_code == 7
        assert (await desk.ask(ApiKey.DELETE_TOPICS, topics=[{"name": "t"}], timeout=1)).responses[0].error_code == 7
        assert (await desk.metadata("t")).error_code == 0

    run(tmp_path, work)
