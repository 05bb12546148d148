"""Kafka starts on topics that `seglog undelete` brought back, and its clients go on where they were."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from tests.cli.run import Run, run_here
from tests.kafka import KafkaNode
from tests.kit.topics import admin_client, create_topics, values, write
from tests.kit.waiting import SECONDS, wait_until

CONFIG = {"retention.ms": "123456789012", "cleanup.policy": "delete"}


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    return run_here(capfdbinary)


def _delete(bootstrap: str, topic: str) -> None:
    admin = admin_client(bootstrap)
    for done in admin.delete_topics([topic]).values():
        done.result(SECONDS)


def _topic_id(bootstrap: str, topic: str) -> str:
    admin = admin_client(bootstrap)
    (found,) = admin.describe_topics(TopicCollection([topic])).values()
    return str(found.result(SECONDS).topic_id)


def _config(bootstrap: str, topic: str) -> dict[str, str]:
    admin = admin_client(bootstrap)
    (found,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
    return {key: one.value for key, one in found.result(SECONDS).items() if key in CONFIG}


@pytest.mark.parametrize("end", [KafkaNode.kill, KafkaNode.stop], ids=["killed", "stopped"])
def test_a_deleted_topic_comes_back(tmp_path: Path, run: Run, end: Callable[[KafkaNode], None]) -> None:
    with KafkaNode(tmp_path, {"log.segment.delete.delay.ms": "3600000"}) as node:
        create_topics(node.bootstrap, NewTopic("lost", 2, 1, config=CONFIG), NewTopic("kept", 1, 1))
        written = [str(number) for number in range(5)]
        for value in written:
            assert write(node.bootstrap, "lost", value) is None
        topic_id = _topic_id(node.bootstrap, "lost")
        _delete(node.bootstrap, "lost")
        wait_until(lambda: not (node.log_dir / "lost-0").exists(), "the partition's directory to be renamed")
        end(node)
        planned = json.loads(run("undelete", node.log_dir, "--dry-run", "--json").text)
        assert [one["topic"] for one in planned["topics"]] == ["lost"]
        assert not (node.log_dir / "lost-0").exists()
        ran = run("undelete", node.log_dir, "--yes", "--json")
        assert ran.code == 0, ran.text + ran.err
        node.start()
        assert _topic_id(node.bootstrap, "lost") == topic_id
        assert _config(node.bootstrap, "lost") == CONFIG
        assert values(node.bootstrap, "lost") == written
        assert write(node.bootstrap, "lost", "more") is None
        assert values(node.bootstrap, "lost") == [*written, "more"]
        node.stop()
        node.start()
        assert values(node.bootstrap, "lost") == [*written, "more"]
        assert write(node.bootstrap, "kept", "tea") is None
        node.stop()
        assert run("verify", node.log_dir).code == 0
        node.start()
