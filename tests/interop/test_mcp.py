"""`seglog mcp` and a real Kafka: lag, readable lag, why, and records, of brokers and of Kafka's own files."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.broker.python_clients import NewTopic
from tests.clients.servers import Server
from tests.kit.topics import commit, create_topics, write_all
from tests.mcp.agent import start

pytestmark = pytest.mark.interop


def test_an_agent_reads_kafka_and_changes_nothing(tmp_path: Path) -> None:
    with Server("kafka", tmp_path) as kafka:
        create_topics(kafka.bootstrap, NewTopic("work", 1, 1))
        write_all(kafka.bootstrap, "work", [str(number) for number in range(20)], batch=5)
        with start("-b", kafka.bootstrap, "--timeout", "60") as agent:
            assert [one["value"] for one in agent.ask("records", topic="work", partition=0, count=2)["records"]] == [
                "18",
                "19",
            ]
            assert "does not exist" in agent.refused("lag", group="readers")
            assert "does not exist" in agent.refused("records", topic="none", partition=0)
            assert [one["topic"] for one in agent.ask("topics")["topics"]] == ["work"]
            commit(kafka.bootstrap, "readers", "work", 5)
            settings = {"transactional.id": "open", "transaction.timeout.ms": 600_000}
            producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0, **settings})
            producer.init_transactions(60)
            producer.begin_transaction()
            producer.produce("work", b"open", partition=0)
            producer.flush(60)
            found = agent.ask("lag", group="readers")
            assert (found["lag"], found["readableLag"]) == (16, 15)
            (told,) = agent.ask("explain", topic="work", group="readers")["partitions"]
            assert {"lag", "transactions", "retention"} <= {one["about"] for one in told["statements"]}
            cluster = agent.ask("cluster")
            assert (cluster["healthy"], cluster["findings"]) == (True, [])
            assert agent.ask("topic", topic="work")["partitions"][0]["isr"] == [cluster["controller"]]
            place = {"topic": "work", "partition": 0, "offset": 0, "isolation": "read_committed"}
            assert len(agent.ask("records", **place, count=200)["records"]) == 20
            producer.abort_transaction(60)
            assert len(agent.ask("records", **place, count=200)["records"]) == 20
