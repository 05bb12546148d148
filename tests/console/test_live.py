"""A console of a broker: status, history, groups, records, and what --write allows; changes between two rounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from seglog.cluster.health import BrokerStatus, ClusterStatus, PartitionStatus
from seglog.console.live import changes
from seglog.testing import Broker
from tests.broker.broker_thread import RunningNode
from tests.broker.python_clients import NewTopic
from tests.cli.run import seglog_command
from tests.console.asking import TOKEN, Asked, Started, start
from tests.kit.ports import free_port
from tests.kit.topics import begin_work, commit, committed, create_topics, values, write_all
from tests.kit.waiting import wait_until

pytestmark = pytest.mark.xdist_group("console")


@pytest.fixture(scope="module")
def writing(broker: RunningNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """A console of the broker and its directory that may write. Partition 0 of ``work`` has 20 records, of which group
    ``readers`` has read 5, and 4 of a transaction that stays open."""
    create_topics(broker.bootstrap, NewTopic("work", 2, 1))
    shown = str(broker.path), "-b", broker.bootstrap
    with begin_work(broker.bootstrap), start(tmp_path_factory.mktemp("console"), *shown, "--write") as running:
        yield running


@pytest.fixture
def asked(writing: Started) -> Asked:
    return writing.asked


def test_the_cluster_is_that_of_seglog_cluster_status(asked: Asked, broker: RunningNode) -> None:
    found = asked.ask("cluster", filter="work-", count=10)
    assert (found["healthy"], found["findings"], found["problem"]) == (True, [], None)
    assert [(one["topic"], one["partition"], one["leader"], one["isr"]) for one in found["partitions"]] == [
        ("work", number, one["leader"], [one["leader"]]) for number, one in enumerate(found["partitions"])
    ]
    ran = seglog_command("cluster", "status", "-b", broker.bootstrap, "--json")
    (printed,) = ran.objects
    assert found["cluster"] == printed["cluster"]
    ours = ("leads", "replicas", "inSync", "size")
    brokers = [{name: value for name, value in one.items() if name not in ours} for one in found["brokers"]]
    assert brokers == printed["brokers"]
    assert [one for one in printed["partitions"] if one["topic"] == "work"] == found["partitions"]


def test_history_has_throughput_and_readable_lag(asked: Asked, broker: RunningNode) -> None:
    wait_until(lambda: asked.ask("history")["samples"], "a sample")
    create_topics(broker.bootstrap, NewTopic("measured", 1, 1))
    since = asked.ask("history")["samples"][-1]["at"]
    wait_until(lambda: asked.ask("cluster", filter="measured-")["total"] == 1, "a sample that knows the topic")
    write_all(broker.bootstrap, "measured", ["x"] * 10, batch=10)

    def rates() -> list[float]:
        return [one["records"] for one in asked.ask("history", since=since)["samples"] if one["records"]]

    wait_until(lambda: sum(rates()) > 0, "records a second")
    group = asked.ask("history")["samples"][-1]["groups"]["readers"]
    assert (group["state"], group["members"]) == ("Empty", 0)
    assert group["lag"] - group["readable"] == 4
    assert asked.ask("history", since=2**50)["samples"] == []


def test_a_group_has_both_lags(asked: Asked) -> None:
    assert "readers" in [one["group"] for one in asked.ask("groups")["groups"]]
    found = asked.ask("group", group="readers")
    (row,) = found["partitions"]
    assert (row["topic"], row["partition"], row["offset"]) == ("work", 0, 5)
    assert row["lag"] - row["readableLag"] == 4
    assert row["end"] == row["offset"] + row["lag"]
    missing = asked.answer("group", group="none")
    assert (missing.status, missing.document) == (502, {"error": "group none does not exist"})


def test_records_come_from_brokers_as_from_the_disk(asked: Asked) -> None:
    place = {"topic": "work", "partition": 0, "offset": 3, "count": 6}
    names = ("offset", "timestamp", "key", "value", "headers", "keySize", "valueSize", "leaderEpoch")
    read = [
        [{name: one[name] for name in names} for one in asked.ask("records", **place, from_=source)["records"]]
        for source in ("disk", "brokers")
    ]
    assert read[0] == read[1]
    assert [one["offset"] for one in read[0]] == list(range(3, 9))
    found = asked.ask("records", topic="work", partition=0, offset=0, path="number=7", from_="brokers")
    assert [one["offset"] for one in found["records"]] == [7]
    stable = asked.ask("records", topic="work", partition=0, offset=18, from_="brokers", isolation="read_committed")
    assert ([one["offset"] for one in stable["records"]], stable["end"]) == ([18, 19], 20)
    empty = asked.ask("records", topic="work", partition=1, offset=0, from_="brokers")
    assert (empty["records"], empty["next"]) == ([], None)


def test_the_picture_has_the_configuration_of_the_brokers(asked: Asked) -> None:
    retention = asked.ask("partition", topic="work", partition=0)["retention"]
    assert (retention["source"], retention["retentionMs"]) == ("brokers", 7 * 86_400_000)


def test_a_record_is_produced_where_it_is_asked_for(asked: Asked, broker: RunningNode) -> None:
    create_topics(broker.bootstrap, NewTopic("made", 1, 1))
    made = asked.post("produce", topic="made", partition=0, key="k", value="<b>v</b>", headers=[["h", "1"]])
    assert made.document["partitions"] == [{"partition": 0, "records": 1, "lastOffset": 0}]
    assert asked.post("produce", topic="made", key="k").document["records"] == 1
    rows = asked.ask("records", topic="made", partition=0, offset=0, from_="brokers")["records"]
    assert [(one["key"], one["value"], one["headers"]) for one in rows] == [
        ("k", "<b>v</b>", [["h", "1"]]),
        ("k", None, []),
    ]
    assert asked.post("produce", topic="none", value="v").document == {"error": "topic none does not exist"}
    assert asked.post("produce", topic="made", partition=7, value="v").status == 502
    assert asked.post("produce", topic="made", value="v", headers=[["h"]]).status == 400
    assert asked.post("produce", topic="made", value=1).document == {"error": "value must be of type string"}
    assert len(values(broker.bootstrap, "made")) == 2


def test_a_reset_is_previewed_and_then_committed(asked: Asked, broker: RunningNode) -> None:
    create_topics(broker.bootstrap, NewTopic("reset", 1, 1))
    write_all(broker.bootstrap, "reset", ["x"] * 9, batch=9)
    commit(broker.bootstrap, "restarting", "reset", 9)
    wanted = {"group": "restarting", "topic": "reset", "mode": "offset", "value": "4"}
    preview = asked.post("reset", **wanted).document
    assert preview == {
        "group": "restarting",
        "done": False,
        "partitions": [{"topic": "reset", "partition": 0, "offset": 9, "newOffset": 4}],
    }
    assert committed(broker.bootstrap, "restarting", "reset") == 9
    assert asked.post("reset", **wanted, execute=True).document["done"] is True
    assert committed(broker.bootstrap, "restarting", "reset") == 4
    for mode, value, expected in (("earliest", "", 0), ("latest", "", 9), ("shift", "-1", 3), ("time", "-1h", 0)):
        found = asked.post("reset", group="restarting", topic="reset", mode=mode, value=value).document
        assert found["partitions"][0]["newOffset"] == expected
    assert asked.post("reset", **{**wanted, "value": "x"}).document == {"error": "'x' is not a number"}
    assert asked.post("reset", **{**wanted, "mode": "nowhere"}).status == 400


def test_a_change_of_another_content_type_is_refused(asked: Asked) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "text/plain"}
    assert asked.send("POST", "/api/produce", headers, b'{"topic": "made"}').status == 415


def test_brokers_that_do_not_answer_are_one_sentence(tmp_path_factory: pytest.TempPathFactory) -> None:
    away = f"127.0.0.1:{free_port()}"
    with start(tmp_path_factory.mktemp("console"), "-b", away, "--timeout", "1") as running:
        answer = running.asked.answer("cluster")
        assert (answer.status, away in answer.document["error"]) == (502, True)
        assert running.asked.ask("history")["problem"] == answer.document["error"]
        assert running.asked.answer("partitions").status == 409


def test_a_secured_cluster_takes_the_settings_of_the_commands(tmp_path: Path) -> None:
    with Broker({"orders": [b"tea"]}, security="SASL_SSL") as broker:
        settings = broker.client_properties("alice", style="librdkafka")
        file = tmp_path / "client.properties"
        file.write_text("".join(f"{name}={text}\n" for name, text in settings.items() if name != "bootstrap.servers"))
        with start(tmp_path, "-b", broker.bootstrap, "-F", str(file)) as running:
            found = running.asked.ask("cluster", filter="orders")
            assert (found["healthy"], found["total"]) == (True, 1)
            assert list(found["partitions"][0]["ends"].values()) == [1]
            (record,) = running.asked.ask("records", topic="orders", partition=0, offset=0)["records"]
            assert record["value"] == "tea"


def _cluster(*partitions: PartitionStatus, brokers: tuple[int, ...] = (1, 2)) -> ClusterStatus:
    return ClusterStatus(
        cluster_id="c",
        controller=1,
        brokers={node: BrokerStatus(node_id=node) for node in brokers},
        partitions=partitions,
    )


def test_changes_between_rounds_have_names() -> None:
    before = PartitionStatus(topic="t", number=0, replicas=(1, 2), isr=(1, 2), leader=1, leader_epoch=3)
    after = replace(before, isr=(2,), leader=2, leader_epoch=4)
    assert list(changes(_cluster(before), _cluster(after, brokers=(2, 3)))) == [
        ("left", "broker 1 left"),
        ("came", "broker 3 came"),
        ("election", "t-0: leader 2 instead of 1, epoch 4"),
        ("shrink", "t-0: in sync 2"),
    ]
    gone = replace(after, leader=None, isr=())
    assert list(changes(_cluster(after), _cluster(gone))) == [
        ("election", "t-0: no leader instead of 2, epoch 4"),
        ("shrink", "t-0: in sync none"),
    ]
    assert list(changes(_cluster(gone), _cluster(before))) == [
        ("election", "t-0: leader 1 instead of none, epoch 3"),
        ("expand", "t-0: in sync 1, 2"),
    ]
    assert list(changes(_cluster(), _cluster(before))) == []
