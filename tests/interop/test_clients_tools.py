"""Kafka's own command line tools, of 4.4 and of 3.9, against our broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.clients.java_tools import Ran, Steps, only, verifiable
from tests.clients.servers import Server
from tests.kafka.jars import CURRENT, PREVIOUS, KafkaVersion
from tests.kafka.tools import topics


@pytest.mark.parametrize("version", [CURRENT, PREVIOUS])
def test_kafkas_tools(server: Server, version: KafkaVersion, topic_name: str, tmp_path: Path) -> None:
    steps = Steps(version, server.bootstrap)
    topic, group = ("--topic", topic_name), ("--group", f"group-{topic_name}")
    before = tmp_path / "before.json"
    before.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic_name, "partition": 0, "offset": 1}]}))
    steps.add("create", "topics", "--create", *topic, "--partitions", "1", "--config", "segment.ms=3600000")
    steps.add("create again", "topics", "--create", *topic, "--partitions", "1")
    lines = "a:1\nb:2\nc:3\n"
    parse = ("--property", "parse.key=true", "--property", "key.separator=:")
    steps.add("produce", "console-producer", *topic, *parse, "--compression-codec", "zstd", stdin=lines)
    show = ("--property", "print.key=true", "--property", "print.offset=true", "--property", "print.partition=true")
    steps.add("consume", "console-consumer", *topic, *show, *group, "--from-beginning", "--max-messages", "3")
    steps.add("grow", "topics", "--alter", *topic, "--partitions", "2")
    steps.add("describe", "topics", "--describe", *topic)
    steps.add("list", "topics", "--list")
    for time in ("-1", "-2", "-3"):
        steps.add(f"offsets {time}", "get-offsets", *topic, "--time", time)
    steps.add("groups", "consumer-groups", "--list")
    steps.add("group", "consumer-groups", "--describe", *group)
    steps.add("state", "consumer-groups", "--describe", "--state", *group)
    steps.add("reset", "consumer-groups", *group, "--reset-offsets", *topic, "--to-earliest", "--execute")
    steps.add("group again", "consumer-groups", "--describe", *group)
    steps.add("delete offsets", "consumer-groups", *group, "--delete-offsets", "--topic", f"{topic_name}:1")
    steps.add("delete group", "consumer-groups", *group, "--delete")
    steps.add("no group", "consumer-groups", *group, "--describe")
    entity = ("--entity-type", "topics", "--entity-name", topic_name)
    steps.add("alter", "configs", "--alter", *entity, "--add-config", "retention.ms=77777,segment.bytes=20000000")
    steps.add("alter wrong", "configs", "--alter", *entity, "--add-config", "retention.ms=soon")
    steps.add("configs", "configs", "--describe", *entity)
    steps.add("broker configs", "configs", "--describe", "--entity-type", "brokers", "--entity-default")
    steps.add("delete records", "delete-records", "--offset-json-file", str(before))
    steps.add("offsets then", "get-offsets", *topic, "--time", "earliest")
    steps.add("log dirs", "log-dirs", "--describe", "--topic-list", topic_name)
    steps.add("versions", "broker-api-versions")
    steps.add("quorum", "metadata-quorum", "describe", "--status")
    steps.add("members", "metadata-quorum", "describe", "--replication")
    steps.add("unregister", "cluster", "unregister", "--id", "77")
    props = ("--producer-props", f"bootstrap.servers={server.bootstrap}", "acks=all")
    perf = ("--num-records", "2000", "--record-size", "100", "--throughput", "-1")
    steps.add("perf produce", "producer-perf-test", *topic, *perf, *props)
    steps.add("perf consume", "consumer-perf-test", *topic, "--messages", "2000", "--timeout", "20000")
    steps.add("delete", "topics", "--delete", *topic)
    steps.add("delete again", "topics", "--delete", *topic)
    ran = steps.run()
    refused = ("create again", "alter wrong", "delete again", "unregister")
    wrong = {name: one for name, one in ran.items() if (one.code == 0) == (name in refused)}
    assert not wrong
    _check_topics(ran, topic_name)
    _check_groups(ran, topic_name)
    _check_the_rest(ran, topic_name, server)


def _check_topics(ran: dict[str, Ran], topic: str) -> None:
    assert f"Created topic {topic}." in ran["create"].out
    assert f"Topic '{topic}' already exists" in ran["create again"].out + ran["create again"].err
    # 4.3 and later say before that an option is deprecated.
    assert ran["consume"].lines[-3:] == [
        f"Partition:0\tOffset:{offset}\t{key}\t{offset + 1}" for offset, key in enumerate("abc")
    ]
    head = only(ran["describe"].lines, "PartitionCount: 2")
    assert "segment.ms=3600000" in head
    for partition in (0, 1):
        assert only(ran["describe"].lines, f"Partition: {partition}").count("Leader: ") == 1
    assert topic in ran["list"].lines
    assert ran["offsets -1"].lines == [f"{topic}:0:3", f"{topic}:1:0"]
    assert ran["offsets -2"].lines == [f"{topic}:0:0", f"{topic}:1:0"]
    assert ran["offsets -3"].lines[0] in (f"{topic}:0:{offset}" for offset in range(3))
    assert "does not exist as expected" in ran["delete again"].out + ran["delete again"].err


def _check_groups(ran: dict[str, Ran], topic: str) -> None:
    group = f"group-{topic}"
    assert group in ran["groups"].lines
    assert only(ran["group"].lines, f"{group} ", f" {topic} ").split()[:6] == [group, topic, "0", "3", "3", "0"]
    assert only(ran["state"].lines, f"{group} ").split()[-2:] == ["Empty", "0"]
    # 3.9 puts this table's rows on one line.
    assert ran["reset"].out.split() in [
        ["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET", *(word for one in order for word in (group, topic, one, "0"))]
        for order in ("01", "10")
    ]
    again = [line.split()[:6] for line in ran["group again"].lines if line.startswith(f"{group} ")]
    assert sorted(again) == [[group, topic, "0", "0", "3", "3"], [group, topic, "1", "0", "0", "0"]]
    assert "was successful" in ran["delete group"].out
    missing = (f"Consumer group '{group}' does not exist", f"GroupIdNotFoundException: Group {group} not found")
    assert any(one in ran["no group"].out for one in missing)


def _check_the_rest(ran: dict[str, Ran], topic: str, server: Server) -> None:
    assert only(ran["configs"].lines, "retention.ms=77777 ", "DYNAMIC_TOPIC_CONFIG:retention.ms=77777")
    assert only(ran["configs"].lines, "segment.bytes=20000000 ")
    assert only(ran["configs"].lines, "segment.ms=3600000 ")
    assert only(ran["delete records"].lines, f"{topic}-0", "low_watermark: 1")
    assert ran["offsets then"].lines == [f"{topic}:0:1", f"{topic}:1:0"]
    told = json.loads(only(ran["log dirs"].lines, '"brokers"'))
    (log_dir,) = told["brokers"][0]["logDirs"]
    assert Path(log_dir["logDir"]).resolve() == server.log_dir.resolve()
    assert {one["partition"] for one in log_dir["partitions"]} == {f"{topic}-0", f"{topic}-1"}
    assert only(ran["versions"].lines, "Produce(0): 0 to ")
    quorum = {key: value.strip() for key, _, value in (line.partition(":") for line in ran["quorum"].lines)}
    assert (quorum["LeaderId"], quorum["MaxFollowerLag"], quorum["CurrentObservers"]) == ("1", "0", "[]")
    assert only(ran["members"].lines, "Leader").split()[0] == "1"
    assert "BrokerIdNotRegisteredException" in ran["unregister"].err
    assert "2000 records sent" in ran["perf produce"].out
    assert int(float(ran["perf consume"].lines[-1].split(", ")[4])) >= 2000


@pytest.mark.everything
@pytest.mark.parametrize("version", [CURRENT, PREVIOUS])
def test_kafkas_verifiable_clients(server: Server, version: KafkaVersion, topic_name: str) -> None:
    topic = ("--topic", topic_name)
    topics(server.bootstrap, "--create", *topic, "--partitions", "3")
    produce = (*topic, "--max-messages", "200", "--acks", "-1")
    sent = verifiable(version, server.bootstrap, "VerifiableProducer", *produce)
    acked = {(one["partition"], one["offset"], one["value"]) for one in sent if one["name"] == "producer_send_success"}
    assert len(acked) == 200
    consume = (*topic, "--group-id", f"verified-{topic_name}", "--max-messages", "200", "--verbose")
    seen = verifiable(version, server.bootstrap, "VerifiableConsumer", *consume, "--reset-policy", "earliest")
    read = [(one["partition"], one["offset"], one["value"]) for one in seen if one["name"] == "record_data"]
    assert sorted(read) == sorted(acked)
    commits = [one for one in seen if one["name"] == "offsets_committed"]
    assert commits
    assert all(one["success"] for one in commits)
