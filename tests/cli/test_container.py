"""The entry point of the image: keys from the variables of apache/kafka's image, and serving."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from seglog.cli.container import MOUNTED, container_keys, ready_lines
from seglog.core.broker_config import BrokerConfig
from seglog.core.errors import InvalidConfigError

_DEPLOY = Path(__file__).parents[2] / "deploy"

TESTCONTAINERS = {
    "KAFKA_NODE_ID": "1",
    "KAFKA_PROCESS_ROLES": "broker,controller",
    "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
    "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9094",
    "KAFKA_LISTENERS": "PLAINTEXT://0.0.0.0:9092,BROKER://0.0.0.0:9093,CONTROLLER://0.0.0.0:9094",
    "KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://localhost:49153,BROKER://172.17.0.3:9093",
    "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "BROKER:PLAINTEXT,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "KAFKA_INTER_BROKER_LISTENER_NAME": "BROKER",
    "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
    "KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS": "1",
    "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
    "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
    "KAFKA_LOG_FLUSH_INTERVAL_MESSAGES": "9223372036854775807",
    "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
    "CLUSTER_ID": "4L6g3nShT-eMCtK--X86sw",
}
"""The variables that Testcontainers' module for apache/kafka sets."""


@pytest.mark.parametrize(
    ("environment", "mounted", "expected"),
    [
        (
            {"HOME": "/root"},
            {},
            {
                "listeners": "PLAINTEXT://0.0.0.0:9092",
                "advertised.listeners": "PLAINTEXT://localhost:9092",
                "log.dirs": "/var/lib/kafka/data",
            },
        ),
        (
            {"KAFKA_ADVERTISED_LISTENERS": "A://kafka:9092,B://[::1]:29092"},
            {},
            {
                "listeners": "A://0.0.0.0:9092,B://0.0.0.0:29092",
                "advertised.listeners": "A://kafka:9092,B://[::1]:29092",
                "log.dirs": "/var/lib/kafka/data",
            },
        ),
        (
            {"KAFKA_LISTENERS": "PLAINTEXT://:9093", "KAFKA_LOG_DIRS": "/d", "KAFKA_NUM_PARTITIONS": "3"},
            {"num.partitions": "2", "log.retention.ms": "5", "log.dirs": "/m"},
            {"listeners": "PLAINTEXT://:9093", "log.dirs": "/d", "num.partitions": "3", "log.retention.ms": "5"},
        ),
        (
            {
                "KAFKA_LISTENERS": "PLAINTEXT://:1",
                "KAFKA_ADVERTISED_LISTENERS": "",
                "KAFKA_A__B___C_D": "x",
                "KAFKA_HEAP_OPTS": "-Xmx1g",
                "KAFKA_JMX_HOSTNAME": "h",
                "KAFKA_LOG4J_ROOT_LOGLEVEL": "INFO",
                "KAFKA_VERSION": "4.4.0",
                "KAFKA_CLUSTER_ID": "c",
            },
            {"log.dir": "/m"},
            {"listeners": "PLAINTEXT://:1", "a_b-c.d": "x", "log.dir": "/m"},
        ),
    ],
)
def test_variables_become_keys(
    environment: Mapping[str, str], mounted: Mapping[str, str], expected: Mapping[str, str]
) -> None:
    assert container_keys(environment, mounted) == expected


def test_settings_of_testcontainers_are_accepted_without_warnings() -> None:
    config = BrokerConfig.from_mapping(container_keys(TESTCONTAINERS, {}))
    assert [str(one) for one in config.broker_listeners] == ["PLAINTEXT://0.0.0.0:9092", "BROKER://0.0.0.0:9093"]
    assert config.node_id == 1
    assert not [note for note in config.notes if "unknown" in note]


def test_refuses_a_container_without_the_broker_role() -> None:
    with pytest.raises(InvalidConfigError, match="KAFKA_PROCESS_ROLES"):
        container_keys({"KAFKA_PROCESS_ROLES": "controller"}, {})


def test_prints_the_ready_lines_of_kafka_images() -> None:
    text = "\n".join(ready_lines(1))
    for pattern in (
        r".*Transitioning from RECOVERY to RUNNING.*",
        r".*\[KafkaServer id=\d+\] started.*",
        "Kafka Server started",
    ):
        assert re.search(pattern, text)


def test_serves_under_the_cluster_id_until_sigterm(tmp_path: Path) -> None:
    mounted = tmp_path / "server.properties"
    mounted.write_text("num.partitions=7\n")
    environment = {
        **os.environ,
        **TESTCONTAINERS,
        "KAFKA_LISTENERS": "PLAINTEXT://127.0.0.1:0,BROKER://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
        "KAFKA_ADVERTISED_LISTENERS": "",
        "KAFKA_LOG_DIRS": str(tmp_path / "data"),
    }
    command = [sys.executable, "-m", "seglog.cli.container", str(mounted)]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            port = re.search(r"PLAINTEXT://127\.0\.0\.1:(\d+),", process.stdout.readline())
            assert port is not None
            assert [process.stdout.readline().strip() for _ in range(3)] == ready_lines(1)
            bootstrap = f"127.0.0.1:{port[1]}"
            producer = Producer({"log_level": 0, "bootstrap.servers": bootstrap})
            producer.produce("t", b"1")
            assert producer.flush(60) == 0
            found = AdminClient({"log_level": 0, "bootstrap.servers": bootstrap}).list_topics(timeout=60)
            assert str(found.cluster_id) == TESTCONTAINERS["CLUSTER_ID"]
            assert len(found.topics["t"].partitions) == 7
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
    again = subprocess.run(
        command, env={**environment, "CLUSTER_ID": "other"}, capture_output=True, text=True, check=False
    )
    assert again.returncode != 0
    assert "cluster.id" in again.stderr


def test_image_entry_point_exists() -> None:
    dockerfile = (_DEPLOY / "Dockerfile").read_text()
    assert 'CMD ["/etc/kafka/docker/run"]' in dockerfile
    assert os.path.dirname(MOUNTED) in dockerfile
    assert container_keys({}, {})["log.dirs"] in dockerfile
    assert shlex.split((_DEPLOY / "run").read_text(), comments=True)[-2:] == ["-m", "seglog.cli.container"]
    assert os.access(_DEPLOY / "run", os.X_OK)
    for source in re.findall(r"^COPY (?!--from)(.*) \S+$", dockerfile, re.MULTILINE):
        for name in source.split():
            assert (_DEPLOY.parent / name).exists()


def test_systemd_unit_uses_options_of_serve() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None, delimiters=["="])
    unit.read(_DEPLOY / "seglog.service")
    command = shlex.split(unit["Service"]["execstart"])
    assert command[:2] == ["/opt/seglog/bin/seglog", "serve"]
    asked = subprocess.run(
        [sys.executable, "-m", "seglog", "serve", "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert [option for option in command[2:] if option.startswith("-") and option not in asked] == []
