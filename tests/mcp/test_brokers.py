"""Tools over brokers: the facts of the commands, only reading APIs, and nothing that is there afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import fastavro
import pytest
from confluent_kafka import Producer

from seglog.console import records
from seglog.console.command import Decoding, Target
from seglog.mcp.tools import TOOLS
from seglog.testing import Broker
from tests.cli.run import seglog_command
from tests.kit.confluent_registry import id_bytes, registry_client, schema
from tests.kit.ports import free_port
from tests.kit.topics import begin_work
from tests.mcp.agent import Agent, start

pytestmark = pytest.mark.xdist_group("mcp")
_PATIENT: Final = ("--timeout", "60")
_READING: Final = {
    "ApiVersions",
    "ConsumerGroupDescribe",
    "DescribeCluster",
    "DescribeConfigs",
    "DescribeGroups",
    "DescribeLogDirs",
    "DescribeTopicPartitions",
    "Fetch",
    "FindCoordinator",
    "ListGroups",
    "ListOffsets",
    "ListPartitionReassignments",
    "Metadata",
    "OffsetFetch",
}
_CALLS: Final[list[tuple[str, dict[str, object]]]] = [
    ("cluster", {}),
    ("topics", {}),
    ("topic", {"topic": "work"}),
    ("configs", {"name": "work", "all": True}),
    ("configs", {"type": "broker"}),
    ("configs", {"type": "broker", "name": "1", "all": True}),
    ("offsets", {"topic": "work"}),
    ("offsets", {"topic": "work", "time": "-1h"}),
    ("groups", {}),
    ("lag", {"group": "readers"}),
    ("explain", {"topic": "work", "group": "readers", "time": "-1h"}),
    ("explain", {"topic": "work", "partition": 0, "offset": 3, "at": "+30d"}),
    ("records", {"topic": "work", "partition": 0}),
    ("records", {"topic": "work", "partition": 1, "time": "-1h", "isolation": "read_committed"}),
]
_REFUSED: Final[list[tuple[str, dict[str, object], str]]] = [
    ("lag", {"group": "none"}, "group none does not exist"),
    ("explain", {"topic": "work", "group": "none"}, "group none does not exist"),
    ("explain", {"topic": "none"}, "topic none does not exist"),
    ("explain", {"topic": "work", "partition": 9}, "topic work has no partition 9"),
    ("topic", {"topic": "none"}, "topic none does not exist"),
    ("offsets", {"topic": "none"}, "topic none does not exist"),
    ("configs", {"name": "none"}, "topic none does not exist"),
    ("configs", {}, "name is missing"),
    ("configs", {"type": "broker", "name": "x"}, "name: 'x' is not a broker id"),
    ("records", {"topic": "none", "partition": 0}, "topic none does not exist"),
    ("records", {"topic": "work", "partition": 2}, "topic work has no partition 2"),
    ("records", {"topic": "\x1b[2J\n", "partition": 0}, "topic \\u001b[2J\\u000a does not exist"),
]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """``work``: 20 records in partition 0, of which group ``readers`` has read 5, and 4 of an open transaction."""
    with Broker({"work": 2}) as running, begin_work(running.bootstrap):
        yield running


@pytest.fixture(scope="module")
def agent(broker: Broker) -> Iterator[Agent]:
    with start("-b", broker.bootstrap, *_PATIENT) as running:
        yield running


def _apis(path: Path) -> set[str]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {one["api"] for one in lines if "request" in one}


def _state(broker: Broker) -> tuple[object, ...]:
    commands = ("topics describe", "offsets", "groups describe readers")
    return tuple(seglog_command(*one.split(), "-b", broker.bootstrap, "--json").objects for one in commands)


def test_no_tool_sends_a_writing_api(broker: Broker, agent: Agent, tmp_path: Path) -> None:
    offered = set(agent.tools())
    assert offered == {name for name, tool in TOOLS.items() if "brokers" in tool.needs}
    assert offered == {name for name, _ in _CALLS}
    before = _state(broker)
    with broker.record(tmp_path / "recording"):
        for name, values in _CALLS:
            agent.ask(name, **values)
        for name, values, reason in _REFUSED:
            assert reason in agent.refused(name, **values)
    asked = _apis(tmp_path / "recording")
    assert {"Fetch", "OffsetFetch", "Metadata"} <= asked <= _READING
    assert _state(broker) == before


def test_a_cluster_without_groups_stays_without_their_topic(tmp_path: Path) -> None:
    with Broker({"work": [b"tea"]}) as empty, start("-b", empty.bootstrap, *_PATIENT) as agent:
        with empty.record(tmp_path / "recording"):
            assert agent.ask("groups")["groups"] == []
            assert "does not exist" in agent.refused("lag", group="any")
            assert "does not exist" in agent.refused("explain", topic="work", group="any")
            agent.ask("records", topic="work", partition=0)
        assert "FindCoordinator" not in _apis(tmp_path / "recording")
        assert [one["topic"] for one in agent.ask("topics")["topics"]] == ["work"]


def test_lag_and_readable_lag_and_why(broker: Broker, agent: Agent) -> None:
    found = agent.ask("lag", group="readers")
    (printed,) = seglog_command("groups", "describe", "readers", "-b", broker.bootstrap, "--json").objects
    (row,) = found["partitions"]
    assert {name: row[name] for name in printed["partitions"][0]} == printed["partitions"][0]
    assert (found["lag"], found["readableLag"], row["readableLag"]) == (19, 15, 15)
    (group,) = agent.ask("groups", filter="READ")["groups"]
    assert (group["lag"], group["readableLag"], group["members"]) == (19, 15, 0)
    assert agent.ask("lag", group="readers", topic="other", order="lag")["partitions"] == []
    told = agent.ask("explain", topic="work", group="readers")["partitions"]
    assert [one["partition"] for one in told] == [0, 1]
    about = {one["about"]: one for one in told[0]["statements"]}
    assert (about["lag"]["lag"], about["transactions"]["firstOffset"]) == (19, 20)
    assert "no committed offset" in {one["about"]: one for one in told[1]["statements"]}["lag"]["text"]
    one = agent.ask("explain", topic="work", partition=1)
    assert ([row["partition"] for row in one["partitions"]], one["total"]) == ([1], 1)


def test_the_documents_are_those_of_the_commands(broker: Broker, agent: Agent) -> None:
    def printed(*command: str) -> dict[str, Any]:
        (found,) = seglog_command(*command, "-b", broker.bootstrap, "--json").objects
        return found

    topic = agent.ask("topic", topic="work")
    assert {name: topic[name] for name in printed("topics", "describe", "work")} == printed(
        "topics", "describe", "work", "--sizes"
    )
    configs = printed("configs", "describe", "work", "--all")
    assert agent.ask("configs", name="work", all=True, count=500)["configs"] == configs["configs"]
    status = printed("cluster", "status")
    cluster = agent.ask("cluster", filter="work-")
    assert (cluster["cluster"], cluster["healthy"], cluster["total"]) == (status["cluster"], True, 2)
    assert cluster["partitions"] == [one for one in status["partitions"] if one["topic"] == "work"]
    offsets = agent.ask("offsets", topic="work", count=1)
    assert offsets["partitions"] == [{"partition": 0, "earliest": 0, "latest": 24, "lastStable": 20}]
    assert agent.ask("offsets", topic="work", first=offsets["next"])["partitions"][0]["latest"] == 0


def test_records_go_on_where_an_answer_ended(agent: Agent) -> None:
    place = {"topic": "work", "partition": 0}
    first = agent.ask("records", **place, offset=0, count=7)
    second = agent.ask("records", **place, offset=first["next"], count=200, isolation="read_committed")
    assert [one["offset"] for one in (*first["records"], *second["records"])] == list(range(20))
    assert (second["end"], second["next"]) == (20, None)
    assert [one["offset"] for one in agent.ask("records", **place, offset=0, path="number=7")["records"]] == [7]


def test_files_tell_what_brokers_that_are_away_do_not(tmp_path: Path) -> None:
    with Broker({"work": [b"tea"]}, data_dir=tmp_path / "log") as broker:
        both = (str(tmp_path / "log"), "-b", broker.bootstrap)
        with start(*both, *_PATIENT) as agent:
            assert set(agent.tools()) == set(TOOLS) - {"schemas"}
            for source in ("disk", "brokers"):
                (record,) = agent.ask("records", topic="work", partition=0, from_=source)["records"]
                assert record["value"] == "tea"
            about = agent.ask("explain", topic="work", partition=0)
            assert (about["from"], "brokers" in about) == ("disk", False)
            assert agent.refused("explain", topic="work", partition=0, group="none") == "group none does not exist"
        broker.stop()
        with start(*both, "--timeout", "1") as agent:
            told = agent.ask("explain", topic="work", partition=0)
            assert (told["logEndOffset"], broker.bootstrap in told["brokers"]) == (1, True)
            assert broker.bootstrap in agent.refused("cluster")


def test_aborted_batches_count_towards_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_SCANNED_BYTES", 1_000)
    with Broker({"aborted": 1}) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0, "transactional.id": "aborts"})
        producer.init_transactions(60)
        for _ in range(6):
            producer.begin_transaction()
            producer.produce("aborted", b"x" * 600)
            producer.flush(60)
            producer.abort_transaction(60)
        console = Target(bootstrap=broker.bootstrap, timeout=60.0).open(Decoding(), command="console")
        reader = records.Reader(console.cluster, console.clock, console.typed)
        ways: list[int | None] = [0]
        while ways[-1] is not None:
            page = reader.read("aborted", 0, ways[-1], records.Extent(9, 9), records.Filter(), "read_committed")
            assert page["records"] == []
            ways.append(page["next"])
    assert len(ways) > 3
    assert ways[:-1] == sorted(set(ways[:-1]), key=lambda one: -1 if one is None else one)


def test_brokers_that_do_not_answer_are_one_sentence() -> None:
    away = f"127.0.0.1:{free_port()}"
    with start("-b", away, "--timeout", "1") as agent:
        for name, values in _CALLS:
            sentence = agent.refused(name, **values)
            assert (away in sentence, "\n" in sentence) == (True, False), sentence


def test_values_are_decoded_by_the_registry_which_also_tells_its_schemas(tmp_path: Path) -> None:
    text = json.dumps({"type": "record", "name": "Flight", "fields": [{"name": "carrier", "type": "string"}]})
    with Broker({"flights": 1}, registry=True) as broker:
        with registry_client(broker.registry_url) as client:
            number = client.register_schema("flights-value", schema(text))
        value = bytearray(id_bytes("AVRO", number))
        encoded = tmp_path / "value"
        with encoded.open("wb") as file:
            fastavro.schemaless_writer(file, json.loads(text), {"carrier": "UA"})
        value += encoded.read_bytes()
        broker.create_topic("more", records=[b"\xff\x00", bytes(value)])
        producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        producer.produce("flights", bytes(value))
        producer.flush(60)
        arguments = ("-b", broker.bootstrap, "--value-format", "avro", "--registry", broker.registry_url, *_PATIENT)
        with start(*arguments) as agent:
            (record,) = agent.ask("records", topic="flights", partition=0, offset=0)["records"]
            assert json.loads(record["value"]) == {"carrier": "UA"}
            (found,) = agent.ask("schemas", topic="flights")["schemas"]
            assert (found["of"], found["id"], found["version"], found["type"]) == ("value", number, 1, "AVRO")
            assert json.loads(found["schema"]) == json.loads(text)
            (same,) = agent.ask("schemas", id=number)["schemas"]
            assert same["schema"] == found["schema"]
            assert "schema registry" in agent.refused("schemas", topic="none")
            assert "either topic or id" in agent.refused("schemas")
