"""A node as a whole: listeners, limits, what it tells of itself, a second one, a disk that fails."""

from __future__ import annotations

import asyncio
import errno
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from seglog.core.errors import InvalidConfigError, InvalidLogDirError, LogDirInUseError
from seglog.protocol.api_versions import Features, write_api_versions
from seglog.protocol.apis import APIS, ApiKey
from seglog.protocol.messages import write_response
from seglog.storage.formats.paths import CLEAN_SHUTDOWN
from tests.broker.broker_thread import RunningNode, Wire
from tests.broker.python_clients import aiokafka, aiokafka_admin, kafka
from tests.kit.waiting import wait_until


def test_every_api_in_every_version_is_answered(wire: Wire) -> None:
    """With the defaults of its fields: the least that a request can be."""
    slow = {ApiKey.JOIN_GROUP, ApiKey.PRODUCE}  # which have tests of their own
    for key, api in APIS.items():
        if key not in slow:
            for version in range(max(api.low, api.served), api.high + 1):
                wire.ask(ApiKey(key), version)


FEATURES = Features({"a": (0, 2), "b.version": (1, 1)}, {"b.version": 1, "c": 7}, 5)


def test_api_versions_lists_exactly_the_served_versions(wire: Wire) -> None:
    answer = wire.ask(ApiKey.API_VERSIONS, client_software_name="test", client_software_version="1.0")
    assert {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys} == {
        key: (api.low, api.high) for key, api in APIS.items()
    }
    assert wire.ask(ApiKey.API_VERSIONS, client_software_name="a b", client_software_version="1").error_code == 42


def test_each_listener_tells_its_own_address(start: Callable[..., RunningNode]) -> None:
    running = start(
        {
            "listeners": "PLAINTEXT://127.0.0.1:0,OUTSIDE://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
            "advertised.listeners": "OUTSIDE://broker.example:9999",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OUTSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "broker.rack": "r1",
            "node.id": "7",
        }
    )
    told = []
    for address in running.node.addresses:
        with Wire(f"{address.host}:{address.port}") as wire:
            (broker,) = wire.ask(ApiKey.METADATA, topics=()).brokers
            told.append((broker.node_id, broker.host, broker.port, broker.rack))
            cluster = wire.ask(ApiKey.DESCRIBE_CLUSTER, endpoint_type=1)
            assert [(one.broker_id, one.host) for one in cluster.brokers] == [(7, broker.host)]
            assert wire.ask(ApiKey.DESCRIBE_CLUSTER, endpoint_type=2).error_code == 114
    inside = running.node.addresses[0]
    assert told == [(7, "127.0.0.1", inside.port, "r1"), (7, "broker.example", 9999, "r1")]


@pytest.mark.parametrize(
    "settings",
    [
        {"listeners": "PLAINTEXT://127.0.0.1:0", "authorizer.class.name": "some.Authorizer"},
        {"advertised.listeners": "OTHER://host:1"},
        {"listeners": "PLAINTEXT://0.0.0.0:0", "advertised.listeners": "PLAINTEXT://0.0.0.0:9092"},
        {"listeners": "PLAINTEXT://[::]:0", "advertised.listeners": "PLAINTEXT://[::]:9092"},
    ],
)
def test_impossible_settings_are_refused_at_startup(settings: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError):
        RunningNode(tmp_path, settings)


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", ""])
def test_broker_on_all_interfaces_says_which_address_it_gives_to_clients(
    host: str, start: Callable[..., RunningNode], caplog: pytest.LogCaptureFixture
) -> None:
    running = start({"listeners": f"PLAINTEXT://{host}:0", "seglog.insecure.listeners": "true"})
    port = running.node.addresses[0].port
    told = f"clients are told to connect to {os.uname().nodename}:{port}"
    assert any(told in one.getMessage() and "set advertised.listeners=" in one.getMessage() for one in caplog.records)
    assert running.node.bootstrap == f"{os.uname().nodename}:{port}"


def test_a_node_that_is_alone_has_one_directory(tmp_path: Path) -> None:
    running = RunningNode(tmp_path, {"log.dirs": f"{tmp_path / 'a'},{tmp_path / 'b'}"})
    with pytest.raises(InvalidConfigError, match="one log directory"):
        running.start()
    assert not list(tmp_path.iterdir())


def test_a_second_broker_on_the_directory_is_refused(start: Callable[..., RunningNode]) -> None:
    start()
    with pytest.raises(LogDirInUseError):
        start()


def test_a_port_that_is_taken_leaves_nothing_open(start: Callable[..., RunningNode], tmp_path: Path) -> None:
    taken = start().node.addresses[0]
    with pytest.raises(OSError, match=str(taken.port)) as error:
        start({"listeners": str(taken)}, name="other")
    assert error.value.errno == errno.EADDRINUSE
    assert (tmp_path / "other" / CLEAN_SHUTDOWN).exists()
    start(name="other")


def test_another_broker_s_directory_is_refused(start: Callable[..., RunningNode]) -> None:
    start({"node.id": "3"}).stop()
    with pytest.raises(InvalidLogDirError):
        start({"node.id": "4"})


def test_a_disk_that_fails_takes_its_partitions_offline(start: Callable[..., RunningNode], topic_name: str) -> None:
    running = start()
    with Wire(running.bootstrap) as wire:
        wire.create_topic(topic_name)
        (topic,) = wire.ask(ApiKey.METADATA, topics=[{"name": topic_name}]).topics
        wire.send(
            ApiKey.FETCH,
            max_wait=60_000,
            min_bytes=1,
            max_bytes=100,
            session_epoch=-1,
            topics=[{"topic_id": topic.topic_id, "partitions": [{"partition": 0, "partition_max_bytes": 100}]}],
        )
        running.node.directories.dirs[0].health.failed(OSError(errno.EIO, os.strerror(errno.EIO)))
        (response,) = wire.answer(ApiKey.FETCH).responses
        assert [partition.error_code for partition in response.partitions] == [56]

        def offline() -> list[tuple[int, int, tuple[int, ...]]]:
            (topic,) = wire.ask(ApiKey.METADATA, topics=[{"name": topic_name}]).topics
            return [(one.error_code, one.leader_id, one.offline_replicas) for one in topic.partitions]

        wait_until(lambda: offline() == [(5, -1, (1,))], "the controller to know")
        assert wire.ask(ApiKey.DESCRIBE_LOG_DIRS, topics=None).results[0].error_code == 56
        asked = {"name": "late", "num_partitions": 1, "replication_factor": 1}
        assert wire.ask(ApiKey.CREATE_TOPICS, topics=[asked], timeout=30_000).topics[0].error_code == 56
    running.stop()
    assert not (running.path / CLEAN_SHUTDOWN).exists()


def test_the_directory_is_described(broker: RunningNode, wire: Wire, topic_name: str) -> None:
    wire.create_topic(topic_name)
    asked = [{"topic": topic_name, "partitions": [0, 5]}]
    (result,) = wire.ask(ApiKey.DESCRIBE_LOG_DIRS, topics=asked).results
    assert result.log_dir == str(broker.path)
    assert [(topic.name, len(topic.partitions)) for topic in result.topics] == [(topic_name, 1)]
    assert 0 < result.usable_bytes < result.total_bytes


def test_a_broker_is_registered_while_it_runs(start: Callable[..., RunningNode]) -> None:
    running = start()

    async def registered() -> list[str]:
        return await running.node.store.list("brokers")

    assert running.on_loop(registered) == ["1"]
    running.stop()
    running.start()
    assert running.on_loop(registered) == ["1"]


def test_kafka_python_administers_produces_and_consumes(broker: RunningNode, topic_name: str) -> None:
    admin = kafka.KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    admin.create_topics({topic_name: {"num_partitions": 2}})
    assert len(admin.describe_topics([topic_name])[0]["partitions"]) == 2
    producer = kafka.KafkaProducer(bootstrap_servers=broker.bootstrap)
    for number in range(20):
        producer.send(topic_name, b"%d" % number, partition=number % 2)
    producer.close()
    consumer = kafka.KafkaConsumer(
        topic_name, bootstrap_servers=broker.bootstrap, group_id="kp", auto_offset_reset="earliest"
    )
    values = [next(consumer).value for _ in range(20)]
    consumer.close()
    assert sorted(values, key=int) == [b"%d" % number for number in range(20)]
    admin.delete_topics([topic_name])
    assert topic_name not in admin.list_topics()
    admin.close()


def test_aiokafka_administers_produces_and_consumes(broker: RunningNode, topic_name: str) -> None:
    async def run() -> list[bytes | None]:
        admin = aiokafka_admin.AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
        await admin.start()
        await admin.create_topics([aiokafka_admin.NewTopic(topic_name, 1, 1)])
        await admin.close()
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=broker.bootstrap, enable_idempotence=True) as producer:
            for number in range(20):
                await producer.send_and_wait(topic_name, b"%d" % number)
        consumer = aiokafka.AIOKafkaConsumer(
            topic_name, bootstrap_servers=broker.bootstrap, group_id="ak", auto_offset_reset="earliest"
        )
        async with consumer:
            return [(await consumer.getone()).value for _ in range(20)]

    assert asyncio.run(run()) == [b"%d" % number for number in range(20)]


@pytest.mark.parametrize("version", range(6))
def test_api_versions_are_written_as_kio_writes_them(version: int) -> None:
    table = [{"api_key": api.key, "min_version": api.low, "max_version": api.high} for api in APIS.values()]
    for code, rows in ((0, table), (42, [])):
        for features in (FEATURES, Features()) if version >= 3 else (Features(),):
            written = write_api_versions(version, code, with_apis=bool(rows), features=features)
            supported = {name: levels for name, levels in features.supported.items() if version >= 4 or levels[0]}
            answer = {
                "error_code": code,
                "api_keys": rows,
                "supported_features": [
                    {"name": name, "min_version": low, "max_version": high} for name, (low, high) in supported.items()
                ],
                "finalized_features_epoch": features.epoch,
                "finalized_features": [
                    {"name": name, "max_version_level": level, "min_version_level": level}
                    for name, level in features.finalized.items()
                ],
            }
            assert written == write_response(ApiKey.API_VERSIONS, version, answer)


@pytest.mark.parametrize(
    ("knows_cluster", "node_from_ours", "code"),
    [
        ("no", None, 0),
        ("yes", 0, 0),
        ("yes", 1, 129),
        ("other", 0, 129),
        ("empty", 0, 129),
        ("no", 0, 42),
        ("yes", None, 42),
    ],
)
def test_a_client_that_means_another_broker_looks_for_the_cluster_again(
    broker: RunningNode, knows_cluster: str, node_from_ours: int | None, code: int
) -> None:
    """The codes are those of Kafka 4.4 (KIP-1242)."""
    with Wire(broker.bootstrap) as wire:
        cluster = wire.ask(ApiKey.DESCRIBE_CLUSTER)
        ids = {"no": None, "yes": cluster.cluster_id, "other": "x", "empty": ""}
        answer = wire.ask(
            ApiKey.API_VERSIONS,
            5,
            client_software_name="x",
            client_software_version="1",
            cluster_id=ids[knows_cluster],
            node_id=-1 if node_from_ours is None else cluster.brokers[0].broker_id + node_from_ours,
        )
        assert (answer.error_code, bool(answer.api_keys)) == (code, not code)


def test_a_version_of_api_versions_that_is_not_known_is_answered_in_version_0(broker: RunningNode) -> None:
    with Wire(broker.bootstrap) as wire:
        wire.send_raw(struct.pack(">hhih", ApiKey.API_VERSIONS, 99, 7, -1))
        answer = wire.answer(ApiKey.API_VERSIONS, 0)
        assert answer.error_code == 35
        assert {api.api_key for api in answer.api_keys} == APIS.keys()
