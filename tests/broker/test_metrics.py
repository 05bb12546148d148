"""Metrics and health of a broker that works, by what its clients did."""

from __future__ import annotations

import http.client
import json
import os
import re
import ssl
from collections.abc import Callable, Mapping
from contextlib import closing
from http.client import HTTPSConnection
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from seglog.core.errors import InvalidConfigError
from seglog.protocol.apis import ApiKey
from seglog.storage.log.dir_health import Reserve
from tests.broker.broker_thread import RunningNode, Wire
from tests.kit.broker_process import BrokerProcess
from tests.kit.certificates import Authority
from tests.kit.memory_fs import MemoryFs

_LINE = re.compile(r"([a-z_]+)(?:\{(.*)\})? ([0-9.e+-]+)")
Scrape = Mapping[tuple[str, str], float]


def ask(running: RunningNode, path: str) -> tuple[int, str]:
    address = running.node.metrics_address
    assert address is not None
    connection = http.client.HTTPConnection(address.host, address.port, timeout=60)
    connection.request("GET", path)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def scrape(running: RunningNode) -> Scrape:
    """Values by name and labels; no line and no family is there twice."""
    status, text = ask(running, "/metrics")
    assert status == 200
    found: dict[tuple[str, str], float] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            match = _LINE.fullmatch(line)
            assert match is not None, line
            assert (match[1], match[2] or "") not in found
            found[match[1], match[2] or ""] = float(match[3])
    types = re.findall("^# TYPE (.*?) ", text, re.MULTILINE)
    assert len(types) == len(set(types))
    return found


@pytest.fixture
def running(start: Callable[..., RunningNode]) -> RunningNode:
    return start({"metrics.listener": "127.0.0.1:0", "num.partitions": "2"})


def produce(running: RunningNode, count: int) -> None:
    producer = Producer({"log_level": 0, "bootstrap.servers": running.bootstrap, "batch.num.messages": 10})
    for number in range(count):
        producer.produce("t", b"%0100d" % number, partition=number % 2)
    assert producer.flush(60) == 0


def test_metrics_count_produce_fetch_and_commits(running: RunningNode) -> None:
    produce(running, 100)
    consumer = Consumer(
        {"log_level": 0, "bootstrap.servers": running.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["t"])
    got = 0
    while got < 100:
        got += len(consumer.consume(100 - got, 10))
    consumer.commit(asynchronous=False)
    produce(running, 10)
    found = scrape(running)

    topic = 'topic="t"'
    assert found["kafka_server_brokertopicmetrics_messagesin_total", topic] == 110
    assert found["kafka_server_brokertopicmetrics_messagesin_total", ""] > 110  # with __consumer_offsets
    log = running.node.topics.by_name["t"].partitions
    sizes = [one.log.size for one in log if one is not None]
    assert found["kafka_server_brokertopicmetrics_bytesin_total", topic] == sum(sizes)
    assert found["kafka_server_brokertopicmetrics_bytesout_total", topic] > 100 * 100
    for number in (0, 1):
        label = f'{topic},partition="{number}"'
        assert found["kafka_log_log_size", label] == sizes[number]
        assert found["kafka_log_log_logstartoffset", label] == 0
        assert found["kafka_log_log_logendoffset", label] == 55
        assert found["kafka_log_log_numlogsegments", label] == 1
        assert found["kafka_consumergroup_lag", f'consumergroup="g",{label}'] == 5
        assert found["kafka_consumergroup_current_offset", f'consumergroup="g",{label}'] == 50
    requests = 'request="Produce"'
    count = found["kafka_network_requestmetrics_requests_total", requests]
    assert count == found["kafka_network_requestmetrics_totaltimems_count", requests] >= 2
    quantiles = [
        found["kafka_network_requestmetrics_totaltimems", f'{requests},quantile="{text}"']
        for text in ("0.50", "0.75", "0.95", "0.98", "0.99", "0.999")
    ]
    assert quantiles == sorted(quantiles)
    assert quantiles[0] > 0
    total = found["kafka_network_requestmetrics_totaltimems_sum", requests]
    assert quantiles[-1] <= total <= quantiles[-1] * count
    fetches = found["kafka_network_requestmetrics_requests_total", 'request="FetchConsumer"']
    assert fetches == found["kafka_network_requestmetrics_requests_total", 'request="Fetch"'] > 0
    assert found["kafka_network_requestmetrics_requests_total", 'request="JoinGroup"'] > 0
    assert found["kafka_coordinator_group_groupmetadatamanager_numgroups", ""] == 1
    assert found["kafka_coordinator_group_groupmetadatamanager_numgroupsstable", ""] == 1
    assert found["kafka_consumergroup_members", 'consumergroup="g"'] == 1
    assert found["kafka_coordinator_group_groupmetadatamanager_numoffsets", ""] == 2
    assert found["kafka_server_socket_server_metrics_connection_count", 'listener="PLAINTEXT"'] >= 2
    consumer.close()
    after = scrape(running)
    assert after["kafka_coordinator_group_groupmetadatamanager_numgroupsempty", ""] == 1


def test_a_full_disk_is_counted_and_named_until_it_has_room(running: RunningNode) -> None:
    disk = MemoryFs(capacity=1 << 20)
    disk.mkdir("/logs")
    disk.write("/full", bytes(1 << 20))
    health = running.node.directories.dirs[0].health

    async def keep_back() -> None:
        health.keep_back(Reserve(disk, "/logs"))

    async def look() -> bool:
        return health.has_room(float("inf"))

    name = "seglog_fulllogdirectorycount", ""
    assert scrape(running)[name] == 0
    running.on_loop(keep_back)
    assert scrape(running)[name] == 1
    status, text = ask(running, "/health")
    assert (status, json.loads(text)["status"]) == (200, "limited")
    assert json.loads(text)["limits"] == [f"{health.path} is full and accepts no records"]
    disk.capacity = None
    assert running.on_loop(look)
    assert scrape(running)[name] == 0
    assert json.loads(ask(running, "/health")[1])["status"] == "up"


def test_errors_are_told_by_api_and_name(running: RunningNode) -> None:
    produce(running, 2)
    with Wire(running.bootstrap) as wire:
        (topic_id,) = (topic.topic_id for topic in wire.ask(ApiKey.METADATA, topics=[{"name": "t"}]).topics)
        partition = {"fetch_offset": 7, "partition_max_bytes": 1000, "current_leader_epoch": -1}
        partitions = [{**partition, "partition": number} for number in (0, 1)]
        wire.ask(ApiKey.FETCH, max_wait=0, min_bytes=0, topics=[{"topic_id": topic_id, "partitions": partitions}])
        records = {"index": 9, "records": b""}
        wire.ask(ApiKey.PRODUCE, 12, acks=1, timeout=30_000, topic_data=[{"name": "t", "partition_data": [records]}])
        wire.ask(ApiKey.DELETE_TOPICS, topics=[{"name": "nowhere", "topic_id": None}], timeout=30_000)
        wire.ask(ApiKey.METADATA, topics=[{"name": "no/where"}], allow_auto_topic_creation=False)
    found = scrape(running)
    errors = {
        labels: value for (name, labels), value in found.items() if name == "kafka_network_requestmetrics_errors_total"
    }
    assert errors == {
        'request="Fetch",error="OFFSET_OUT_OF_RANGE"': 2,
        'request="FetchConsumer",error="OFFSET_OUT_OF_RANGE"': 2,
        'request="Produce",error="UNKNOWN_TOPIC_OR_PARTITION"': 1,
        'request="DeleteTopics",error="UNKNOWN_TOPIC_OR_PARTITION"': 1,
        'request="Metadata",error="INVALID_TOPIC_EXCEPTION"': 1,
    }


def test_a_broker_that_nobody_uses(running: RunningNode) -> None:
    found = scrape(running)
    expected = {
        "kafka_server_replicamanager_partitioncount": 0,
        "kafka_server_replicamanager_leadercount": 0,
        "kafka_server_replicamanager_underreplicatedpartitions": 0,
        "kafka_server_replicamanager_offlinereplicacount": 0,
        "kafka_controller_kafkacontroller_activecontrollercount": 1,
        "kafka_controller_kafkacontroller_offlinepartitionscount": 0,
        "kafka_controller_kafkacontroller_globaltopiccount": 0,
        "kafka_server_brokertopicmetrics_messagesin_total": 0,
        "kafka_server_kafkaserver_brokerstate": 3,
        "kafka_log_logmanager_offlinelogdirectorycount": 0,
    }
    assert {name: found[name, ""] for name in expected} == expected
    assert found["process_resident_memory_bytes", ""] > 10 << 20
    assert 0 < found["process_open_fds", ""] < found["process_max_fds", ""]
    cpu = found["process_cpu_seconds_total", ""]
    assert 0 < cpu <= sum(os.times()[:2]) + 0.02


def test_a_total_does_not_fall_when_a_topic_goes(running: RunningNode) -> None:
    admin = AdminClient({"log_level": 0, "bootstrap.servers": running.bootstrap})
    for told in (10, 20, 30):
        produce(running, 10)
        assert scrape(running)["kafka_server_brokertopicmetrics_messagesin_total", ""] == told
        if told < 30:
            admin.delete_topics(["t"])["t"].result(60)
            found = scrape(running)
            assert found["kafka_server_brokertopicmetrics_messagesin_total", ""] == told
            assert ("kafka_server_brokertopicmetrics_messagesin_total", 'topic="t"') not in found


def test_health_is_that_of_the_log_directory(running: RunningNode) -> None:
    produce(running, 2)
    status, text = ask(running, "/health")
    assert (status, json.loads(text)["status"]) == (200, "up")
    assert ask(running, "/")[0] == 200
    assert ask(running, "/nothing")[0] == 404

    async def fail() -> None:
        running.node.directories.dirs[0].health.failed(OSError(5, "Input/output error"))

    running.on_loop(fail)
    status, text = ask(running, "/health")
    assert (status, json.loads(text)["status"]) == (503, "down")
    assert "Input/output error" in json.loads(text)["failure"]
    found = scrape(running)
    assert found["kafka_server_replicamanager_offlinereplicacount", ""] == 2
    assert found["kafka_controller_kafkacontroller_offlinepartitionscount", ""] == 2
    assert found["kafka_log_logmanager_offlinelogdirectorycount", ""] == 1


def test_without_a_listener_there_is_none(start: Callable[..., RunningNode]) -> None:
    assert start().node.metrics_address is None
    with pytest.raises(InvalidConfigError, match=r"metrics\.listener"):
        start({"metrics.listener": "nowhere"}, "other")
    with pytest.raises(InvalidConfigError, match=r"metrics\.listener"):
        start({"metrics.listener": "localhost:99999"}, "other")


def test_tls_with_the_clients_certificate(start: Callable[..., RunningNode], tmp_path: Path) -> None:
    """Also after the certificate of the broker was renewed."""
    authority, other = Authority(tmp_path / "one"), Authority(tmp_path / "two")
    store = tmp_path / "store.pem"
    store.touch(0o600)
    store.write_text(authority.issue("broker", "IP:127.0.0.1").store.read_text())
    running = start(
        {
            "metrics.listener": "SSL://127.0.0.1:0",
            "ssl.keystore.location": str(store),
            "listener.name.metrics.ssl.client.auth": "required",
            "ssl.truststore.location": str(authority.certificate),
        }
    )
    address = running.node.metrics_address
    assert address is not None
    client = authority.issue("prometheus")

    def ask_over_tls(trusted: Authority, *, known: bool) -> int:
        context = ssl.create_default_context(cafile=str(trusted.certificate))
        if known:
            context.load_cert_chain(client.chain, client.key)
        with closing(HTTPSConnection("127.0.0.1", address.port, context=context, timeout=30)) as connection:
            connection.request("GET", "/health")
            return connection.getresponse().status

    assert ask_over_tls(authority, known=True) == 200
    with pytest.raises(OSError, match=r"."):
        ask_over_tls(authority, known=False)
    with pytest.raises(ssl.SSLError):
        ask_over_tls(other, known=True)
    new = tmp_path / "new.pem"
    new.touch(0o600)
    new.write_text(other.issue("broker", "IP:127.0.0.1").store.read_text())
    new.replace(store)
    assert ask_over_tls(other, known=True) == 200


def test_metrics_have_no_other_protocol(start: Callable[..., RunningNode]) -> None:
    with pytest.raises(InvalidConfigError, match=r"SSL://HOST:PORT"):
        start({"metrics.listener": "SASL_SSL://127.0.0.1:0"})


def test_serve_has_an_option_for_it(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", options=("--metrics", "127.0.0.1:0")) as broker:
        host, _, port = broker.ready_line["metrics"].rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        connection.request("GET", "/health")
        assert json.loads(connection.getresponse().read())["status"] == "up"
        connection.close()
        broker.stop()


def test_documented_metrics_are_exactly_those_exported(running: RunningNode) -> None:
    """Names of the table in docs/metrics.md; a shortened one stands for its forerunner with another end."""
    documented = set()
    text = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    for row in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE):
        names = re.findall("`(.*?)`", row)
        first = names[0]
        for name in names:
            if name.startswith("_"):
                stem = first.removesuffix("_total").rpartition("_")[0]
                documented.add(stem + name)
            elif name.startswith("…"):
                documented.add(first + name[1:])
            else:
                documented.add(name)
    status, text = ask(running, "/metrics")
    assert (status, set(re.findall("^# TYPE (.*?) ", text, re.MULTILINE))) == (200, documented)
