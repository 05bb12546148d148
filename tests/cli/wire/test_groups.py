"""`seglog groups` against our broker; kafka-python reads the committed offsets."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

from seglog.core.clock import SystemClock
from tests.broker.broker_thread import RunningNode
from tests.broker.python_clients import kafka
from tests.cli.run import Run
from tests.kit.waiting import wait_until


def _committed(broker: RunningNode, group: str, topic: str, partitions: int = 2) -> list[int | None]:
    """The offsets of the group, by kafka-python."""
    consumer = kafka.KafkaConsumer(bootstrap_servers=broker.bootstrap, group_id=group, enable_auto_commit=False)
    try:
        return [consumer.committed(kafka.TopicPartition(topic, number)) for number in range(partitions)]
    finally:
        consumer.close()


@contextmanager
def _member(broker: RunningNode, group: str, topic: str, protocol: str = "classic") -> Iterator[Any]:
    settings = {"log_level": 0, "bootstrap.servers": broker.bootstrap, "group.id": group, "client.id": "member"}
    consumer = Consumer({**settings, "group.protocol": protocol})
    try:
        consumer.subscribe([topic])
        while not consumer.assignment():
            consumer.poll(0.1)
        yield consumer
    finally:
        consumer.close()


@pytest.fixture
def group(wire: Run, topic_name: str) -> str:
    """One that has read 10 records of partition 0 at times 1000, 2000, ... and nothing of partition 1, which has one
    record of now."""
    wire("topics", "create", topic_name, "-p", "2")
    lines = [b'{"value":"%d","partition":0,"timestamp":%d}\n' % (number, 1000 * number) for number in range(1, 11)]
    now = b'{"value":"now","partition":1,"timestamp":%d}\n' % SystemClock().now_ms()
    wire("produce", topic_name, "--records", "--keep-partitions", stdin=b"".join([*lines, now]))
    name = f"group-of-{topic_name}"
    reset = wire("groups", "reset-offsets", name, "-t", f"{topic_name}:0", "--to-latest", "--execute")
    assert (reset.code, reset.err) == (0, "")
    return name


def test_consume_commits_printed_records(wire: Run, broker: RunningNode, topic_name: str, group: str) -> None:
    assert wire("consume", topic_name, "-g", group, "-c", "1").text == "now\n"
    assert _committed(broker, group, topic_name) == [10, 1]
    assert wire("consume", topic_name, "-g", group, "-e").text == ""
    wire("produce", topic_name, "-p", "0", stdin=b"a\nb\nc\n")
    assert wire("consume", topic_name, "-g", group, "-c", "2").text == "a\nb\n"
    assert wire("consume", topic_name, "-g", group, "-e").text == "c\n"
    assert _committed(broker, group, topic_name) == [13, 1]


def test_sigterm_commits_printed_records_and_leaves_the_group(
    wire: Run, broker: RunningNode, topic_name: str, group: str
) -> None:
    command = [sys.executable, "-m", "seglog", "consume", topic_name, "-b", broker.bootstrap, "-g", group]
    environment = {**os.environ, "PYTHONPATH": "src"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"now\n"
        process.send_signal(signal.SIGTERM)
        assert (process.wait(60), process.stderr.read()) == (0, b"")
    assert _committed(broker, group, topic_name) == [10, 1]
    (described,) = wire("groups", "describe", group, "--state", "--json").objects
    assert (described["state"], described["members"]) == ("Empty", 0)


def test_a_partition_without_an_offset_has_no_lag(wire: Run, broker: RunningNode, topic_name: str) -> None:
    wire("produce", topic_name, stdin=b"a\n")
    fresh = f"fresh-{topic_name}"
    with _member(broker, fresh, topic_name):
        lines = wire("groups", "describe", fresh).lines
        assert lines[0] == f"{fresh}: Stable, 1 members, lag -"
        assert lines[2].split()[:5] == [topic_name, "0", "-", "1", "-"]
        (described,) = wire("groups", "describe", fresh, "--json").objects
        assert [(one["offset"], one["lag"]) for one in described["partitions"]] == [(None, None)]


def test_lag_members_and_state(wire: Run, broker: RunningNode, topic_name: str, group: str) -> None:
    wire("produce", topic_name, "-p", "0", stdin=b"a\nb\nc\n")
    (empty,) = wire("groups", "describe", group, "--json").objects
    assert (empty["state"], [(one["offset"], one["end"], one["lag"]) for one in empty["partitions"]]) == (
        "Empty",
        [(10, 13, 3)],
    )
    assert f"{group}: Empty, 0 members, lag 3" in wire("groups", "describe", group).lines
    with _member(broker, group, topic_name):
        (described,) = wire("groups", "describe", "--group", group, "--json").objects
        assert described["state"] == "Stable"
        assert [(one["partition"], one["client"]) for one in described["partitions"]] == [(0, "member"), (1, "member")]
        (members,) = wire("groups", "describe", group, "--members", "--json").objects
        assert [one["partitions"] for one in members["members"]] == [[f"{topic_name}-0", f"{topic_name}-1"]]
        (state,) = wire("groups", "describe", group, "--state", "--json").objects
        assert (state["members"], state["coordinator"]) == (1, broker.node.identity.node_id)
        assert {"group": group, "state": "Stable", "type": "classic", "protocol": "consumer"} in wire(
            "groups", "list", "--json"
        ).objects
        refused = wire("groups", "reset-offsets", group, "-t", topic_name, "--to-earliest", "--execute")
        assert refused.err == f"seglog: group {group} is Stable: offsets can be reset only while it has no members\n"
        for arguments in (("delete", group), ("delete-offsets", group, "-t", topic_name)):
            ran = wire("groups", *arguments)
            assert (ran.code, ran.text) == (2, "")
            assert ran.err.startswith(f"seglog: group {group}")


def test_a_consumer_group_has_epochs_targets_and_subscriptions(wire: Run, broker: RunningNode, topic_name: str) -> None:
    wire("topics", "create", topic_name, "-p", "2")
    both = [f"{topic_name}-0", f"{topic_name}-1"]
    group = f"consumers-of-{topic_name}"
    with _member(broker, group, topic_name, "consumer"):
        (state,) = wire("groups", "describe", group, "--state", "--json").objects
        epoch = state["groupEpoch"]
        assert (state["state"], state["targetEpoch"], state["assignor"]) == ("Stable", epoch, "uniform")
        assert epoch >= 1
        lines = wire("groups", "describe", group, "--state").lines
        assert lines[0].split("  ")[-1] == "members"
        assert lines[1].split()[-3:] == [str(epoch), str(epoch), "1"]
        (described,) = wire("groups", "describe", group, "--members", "--json").objects
        (member,) = described["members"]
        assert (described["groupEpoch"], member["epoch"], member["upgraded"]) == (epoch, epoch, True)
        assert (member["partitions"], member["target"]) == (both, both)
        assert (member["topics"], member["regex"]) == ([topic_name], None)
        header, _, row = wire("groups", "describe", group, "--members").lines
        assert header == f"{group}: Stable, 1 members, group epoch {epoch}, target epoch {epoch}"
        assert row.split()[-4:] == [",".join(both), str(epoch), ",".join(both), topic_name]
        offsets = wire("groups", "describe", group).lines[0]
        assert offsets == f"{group}: Stable, 1 members, lag -, group epoch {epoch}, target epoch {epoch}"
    (left,) = wire("groups", "describe", group, "--json").objects
    assert (left["state"], left["groupEpoch"]) == ("Empty", epoch + 1)


def test_a_member_has_another_epoch_than_its_group_until_it_gives_up_its_partitions(
    wire: Run, broker: RunningNode, topic_name: str
) -> None:
    wire("topics", "create", topic_name, "-p", "2")
    group = f"consumers-of-{topic_name}"
    expression = f"^{topic_name}$"
    with _member(broker, group, expression, "consumer"):  # it is not polled any more, so it keeps its partitions
        second = Consumer(
            {"log_level": 0, "bootstrap.servers": broker.bootstrap, "group.id": group, "group.protocol": "consumer"}
        )
        second.subscribe([topic_name])

        found: dict[str, Any] = {}

        def joined() -> bool:
            second.poll(0.05)
            found.update(wire("groups", "describe", group, "--members", "--json").objects[0])
            return str(found["state"]) == "Reconciling"

        wait_until(joined, "the second member")
        second.close()
    by_regex = {one["regex"]: one for one in found["members"]}
    first, other = by_regex[f"({expression})"], by_regex[None]  # librdkafka adds the brackets
    assert first["epoch"] < found["targetEpoch"] == found["groupEpoch"]
    assert (len(first["partitions"]), len(first["target"]), len(other["target"])) == (2, 1, 1)
    assert (first["topics"], other["topics"]) == ([], [topic_name])


def test_a_classic_group_is_described_without_epochs(wire: Run, broker: RunningNode, topic_name: str) -> None:
    wire("topics", "create", topic_name)
    with _member(broker, f"classic-{topic_name}", topic_name):
        for option in ("--offsets", "--members", "--state"):
            (described,) = wire("groups", "describe", f"classic-{topic_name}", option, "--json").objects
            assert "groupEpoch" not in described
        assert "epoch" not in wire("groups", "describe", f"classic-{topic_name}", "--members").text


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (("--to-earliest",), [0, 0]),
        (("--to-latest",), [10, 1]),
        (("--to-current",), [10, 1]),
        (("--to-offset", "4"), [4, 1]),
        (("--to-datetime", "1970-01-01T00:00:02.500Z"), [2, 0]),
        (("--to-datetime", "2100-01-01T00:00:00+01:00"), [10, 1]),
        (("--by-duration", "PT1H"), [10, 0]),
    ],
)
def test_reset_offsets(
    mode: tuple[str, ...], expected: list[int], wire: Run, broker: RunningNode, topic_name: str, group: str
) -> None:
    planned = wire("groups", "reset-offsets", group, "--all-topics", *mode)
    assert (planned.code, planned.err.splitlines()[-1]) == (
        0,
        "nothing was changed: add --execute to commit these offsets",
    )
    assert _committed(broker, group, topic_name) == [10, None]
    (done,) = wire("groups", "reset-offsets", group, "-t", topic_name, *mode, "--execute", "--json").objects
    assert [(one["offset"], one["newOffset"]) for one in done["partitions"]] == [(10, expected[0]), (None, expected[1])]
    assert _committed(broker, group, topic_name) == expected


def test_shift_export_and_from_file(
    wire: Run, broker: RunningNode, topic_name: str, group: str, tmp_path: Path
) -> None:
    at = f"{topic_name}:0"
    missing = wire("groups", "reset-offsets", group, "-t", topic_name, "--shift-by", "-1")
    assert missing.err == f"seglog: topic {topic_name}, partition 1: --shift-by needs a committed offset\n"
    exported = wire("groups", "reset-offsets", group, "-t", at, "--shift-by", "-3", "--export")
    assert exported.text == f"{topic_name},0,7\n"
    (tmp_path / "plan.csv").write_bytes(exported.out)
    assert wire("groups", "reset-offsets", group, "--from-file", str(tmp_path / "plan.csv"), "--execute").code == 0
    assert _committed(broker, group, topic_name) == [7, None]
    back = wire("groups", "reset-offsets", group, "-t", at, "--shift-by", "-100", "--execute")
    assert (back.code, back.err) == (0, f"seglog: {topic_name}-0: offset -93 is out of range 0 to 10; using 0\n")
    assert _committed(broker, group, topic_name) == [0, None]
    (tmp_path / "plan.csv").write_text("what is this\n")
    wrong = wire("groups", "reset-offsets", group, "--from-file", str(tmp_path / "plan.csv"))
    assert (wrong.code, wrong.err.count("\n")) == (2, 1)
    assert "plan.csv, line 1" in wrong.err


def test_deletes_offsets_and_groups(wire: Run, broker: RunningNode, topic_name: str, group: str) -> None:
    wire("groups", "reset-offsets", group, "-t", topic_name, "--to-earliest", "--execute")
    assert (
        wire("groups", "delete-offsets", group, "-t", f"{topic_name}:0").text == f"deleted offset of {topic_name}-0\n"
    )
    assert _committed(broker, group, topic_name) == [None, 0]
    assert wire("groups", "delete", group).text == f"deleted {group}\n"
    gone = wire("groups", "describe", group)
    assert (gone.code, gone.err) == (2, f"seglog: group {group} does not exist\n")
    assert wire("groups", "delete", group).code == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("describe",),
        ("describe", "g", "--members", "--state"),
        ("reset-offsets", "g", "-t", "t"),
        ("reset-offsets", "g", "-t", "t", "--to-latest", "--to-earliest"),
        ("reset-offsets", "g", "--to-latest"),
        ("reset-offsets", "-t", "t", "--to-latest"),
        ("reset-offsets", "g", "-t", "no-such", "--to-latest"),
        ("reset-offsets", "g", "-t", "t", "--to-latest", "--dry-run", "--execute"),
        ("reset-offsets", "g", "-t", "t", "--by-duration", "yesterday"),
        ("reset-offsets", "g", "-t", "t", "--to-datetime", "yesterday"),
    ],
)
def test_usage_errors(arguments: tuple[str, ...], wire: Run) -> None:
    ran = wire("groups", *arguments)
    assert (ran.code, ran.text, ran.err.count("\n")) == (2, "", 1)
