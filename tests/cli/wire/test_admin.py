"""`seglog topics`, `configs` and `offsets` against our broker, compared with the broker's own state."""

from __future__ import annotations

import socket
import sys
import threading
from pathlib import Path

import pytest

from seglog.cli.main import GROUPS
from seglog.cli.wire.configs import parse_configs
from seglog.client.admin import Admin
from seglog.client.bootstrap import parse_bootstrap
from seglog.core.errors import RequestFailedError
from tests.broker.broker_thread import RunningNode
from tests.cli.run import Run


def test_creates_describes_alters_and_deletes_topics(wire: Run, broker: RunningNode, topic_name: str) -> None:
    made = wire("topics", "create", topic_name, "-p", "3", "-c", "retention.ms=1000,cleanup.policy=[compact,delete]")
    assert (made.code, made.text, made.err) == (0, f"created {topic_name}\n", "")
    assert topic_name in wire("topics", "list").lines
    (described,) = wire("topics", "describe", topic_name, "--json", "--sizes").objects
    assert described["configs"] == {"cleanup.policy": "compact,delete", "retention.ms": "1000"}
    assert [(row["partition"], row["leader"], row["size"]) for row in described["partitions"]] == [
        (number, broker.node.identity.node_id, 0) for number in range(3)
    ]
    assert (broker.path / f"{topic_name}-0" / "partition.metadata").read_text().splitlines()[1] == (
        f"topic_id: {described['topicId']}"
    )
    assert wire("topics", "alter", topic_name, "--partitions", "5", "--dry-run").text == f"would alter {topic_name}\n"
    assert wire("topics", "alter", "--topic", topic_name, "--partitions", "5").code == 0
    assert wire("topics", "describe", topic_name).text.count("\n") == 7
    assert wire("topics", "delete", topic_name).text == f"deleted {topic_name}\n"
    assert topic_name not in wire("topics", "list").lines


def test_errors_of_topic_commands_are_one_line(wire: Run, topic_name: str) -> None:
    wire("topics", "create", topic_name)
    for arguments, reason in (
        (("create", topic_name), f"topic {topic_name}: Topic '{topic_name}' already exists"),
        (("describe", "no-such"), "topic no-such: Unknown topic or partition"),
        (("delete", "no-such"), "topic no-such: Unknown topic or partition"),
        (("delete",), "topics delete needs the name of a topic"),
    ):
        ran = wire("topics", *arguments)
        assert (ran.code, ran.text, ran.err) == (2, "", f"seglog: {reason}\n")
    assert wire("topics", "create", topic_name, "--if-not-exists").code == 0
    assert wire("topics", "delete", "no-such", "--if-exists").code == 0
    some = wire("topics", "delete", "no-such", topic_name, "--json")
    assert (some.code, [(one["topic"], one["done"]) for one in some.objects]) == (
        2,
        [("no-such", False), (topic_name, True)],
    )


def test_configs_of_topics_and_brokers(wire: Run, broker: RunningNode, topic_name: str) -> None:
    wire("topics", "create", topic_name)
    assert wire("configs", "describe", "--topic", topic_name).text == f"topic {topic_name}: nothing is set\n"
    changed = wire(
        "configs", "alter", "-t", topic_name, "--add-config", "retention.ms=5,cleanup.policy=[compact,delete]"
    )
    assert changed.text == f"altered topic {topic_name}\n"
    again = wire(
        "configs", "alter", "-t", topic_name, "--add-config", "segment.ms=7", "--delete-config", "retention.ms"
    )
    assert again.code == 0
    (shown,) = wire("configs", "describe", "--entity-type", "topics", "--entity-name", topic_name, "--json").objects
    assert {one["name"]: one["value"] for one in shown["configs"]} == {
        "cleanup.policy": "compact,delete",
        "segment.ms": "7",
    }
    (everything,) = wire("configs", "describe", "-t", topic_name, "--all", "--json").objects
    assert ("retention.ms", "default") in [(one["name"], one["source"]) for one in everything["configs"]]
    wrong = wire("configs", "alter", "-t", topic_name, "--add-config", "retention.ms=soon")
    assert (wrong.code, wrong.err.count("\n")) == (2, 1)
    assert wrong.err.startswith(f"seglog: topic {topic_name}: ")
    assert "retention.ms" in wrong.err

    node = str(broker.node.identity.node_id)
    for target, source in ((("--broker", node), "broker"), (("--broker-defaults",), "broker-defaults")):
        assert wire("configs", "alter", *target, "--add-config", "log.retention.ms=777").code == 0
        (shown,) = wire("configs", "describe", *target, "--json").objects
        assert [(one["name"], one["value"], one["source"]) for one in shown["configs"]] == [
            ("log.retention.ms", "777", source)
        ]
        assert wire("configs", "alter", *target, "--delete-config", "log.retention.ms").code == 0
        (shown,) = wire("configs", "describe", *target, "--json").objects
        assert shown["configs"] == []


def test_quotas_of_users_clients_and_addresses(wire: Run) -> None:
    assert wire("quotas", "describe").text == ""
    set_ = wire("quotas", "alter", "--user", "ann", "--add-config", "producer_byte_rate=1024,request_percentage=12.5")
    assert (set_.code, set_.text) == (0, "altered user ann\n")
    pair = ("--user", "ann", "--client-defaults")
    set_ = wire("quotas", "alter", *pair, "-s", "consumer_byte_rate=2048")
    assert (set_.code, set_.text) == (0, "altered user ann, default client id\n")
    assert wire("quotas", "alter", "--ip-defaults", "-s", "connection_creation_rate=5").code == 0
    assert wire("quotas", "alter", "--ip", "127.0.0.9", "-s", "connection_creation_rate=7", "--dry-run").code == 0
    assert wire("quotas", "describe", "--json").objects == [
        {"entity": {"client-id": None, "user": "ann"}, "quotas": {"consumer_byte_rate": 2048}},
        {"entity": {"ip": None}, "quotas": {"connection_creation_rate": 5}},
        {"entity": {"user": "ann"}, "quotas": {"producer_byte_rate": 1024, "request_percentage": 12.5}},
    ]
    (found,) = wire("quotas", "describe", *pair, "--json").objects
    assert found["quotas"] == {"consumer_byte_rate": 2048}
    assert [line.split() for line in wire("quotas", "describe", "--user", "ann").lines[1:]] == [
        ["user", "ann", "producer_byte_rate", "1024"],
        ["user", "ann", "request_percentage", "12.5"],
    ]
    names = "producer_byte_rate,request_percentage"
    gone = wire("quotas", "alter", "--user", "ann", "--delete-config", names, "--json")
    assert gone.objects[0]["changes"] == {"producer_byte_rate": None, "request_percentage": None}
    assert wire("quotas", "alter", *pair, "-d", "consumer_byte_rate").code == 0
    assert wire("quotas", "alter", "--ip-defaults", "-d", "connection_creation_rate").code == 0
    assert wire("quotas", "describe").text == ""


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "quotas alter needs --user, --client-id or --ip, or the defaults of one of them"),
        (("--user", "a"), "quotas alter needs --add-config or --delete-config"),
        (("--user", "a", "--user-defaults", "-s", "x=1"), "--user and --user-defaults exclude each other"),
        (("--client-id", "a", "--client-defaults"), "--client-id and --client-defaults exclude each other"),
        (("--user", "a", "-s", "producer_byte_rate=much"), "--add-config: producer_byte_rate='much' is not a number"),
        (("--user", "a", "-s", "x=1", "-d", "x"), "x is both in --add-config and in --delete-config"),
        (
            ("--user", "a", "-s", "producer_byte_rate=0"),
            "quotas: INVALID_REQUEST: Quota producer_byte_rate must be greater than 0",
        ),
        (
            ("--ip", "127.0.0.1", "-s", "request_percentage=1"),
            "quotas: INVALID_REQUEST: Invalid configuration key request_percentage",
        ),
    ],
)
def test_wrong_quotas_are_refused_in_one_line(wire: Run, arguments: tuple[str, ...], reason: str) -> None:
    ran = wire("quotas", "alter", *arguments)
    assert (ran.code, ran.text, ran.err) == (2, "", f"seglog: {reason}\n")


def test_key_values_with_commas() -> None:
    assert parse_configs(["a=b,c=[d,e]", "f=g,h"], "--config") == {"a": "b", "c": "d,e", "f": "g,h"}


def test_offsets(wire: Run, topic_name: str) -> None:
    wire("topics", "create", topic_name, "-p", "2")
    lines = b"".join(b'{"value":"eA==","partition":1,"timestamp":%d}\n' % stamp for stamp in (1000, 3000, 2000))
    assert wire("produce", topic_name, "--records", "--keep-partitions", stdin=lines).err == ""
    assert wire("offsets", topic_name, "--json").objects == [
        {"topic": topic_name, "partition": 0, "earliest": 0, "latest": 0},
        {"topic": topic_name, "partition": 1, "earliest": 0, "latest": 3},
    ]
    for time, expected in (
        ("earliest", 0),
        ("-1", 3),
        ("max-timestamp", 1),
        ("1001", 1),
        ("1970-01-01T00:00:02Z", 1),
        ("3001", None),
    ):
        (found,) = wire("offsets", topic_name, "-p", "1", "--time", time, "--json").objects
        assert found["offset"] == expected, time
    assert wire("offsets", topic_name, "--time", "yesterday").code == 2


def test_every_command_of_the_groups_has_help(run: Run) -> None:
    for name in ("topics", "configs", "groups", "perf", "quotas"):
        assert run(name).text == run(name, "--help").text
        for command in GROUPS[name].commands:
            ran = run(name, command, "--help")
            assert (ran.code, "--json" in ran.text) == (0, True)


def test_an_unreachable_broker_is_reported_with_address_and_reason(run: Run) -> None:
    with socket.socket() as held:  # so that nobody else is given the port; it does not listen
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        for arguments in (("topics", "list"), ("produce", "t"), ("consume", "t"), ("groups", "list"), ("perf", "e2e")):
            ran = run(*arguments, "-b", f"127.0.0.1:{port}")
            assert (ran.code, ran.err) == (2, f"seglog: no broker answers at 127.0.0.1:{port}: Connection refused\n")


def test_refuses_invalid_bootstrap_addresses(run: Run, broker: RunningNode) -> None:
    for option, value in (("-b", "127.0.0.1:many"), ("-X", "no.such=1"), ("-X", "novalue"), ("-F", "/no/such/file")):
        ran = run("topics", "list", *(() if option == "-b" else ("-b", broker.bootstrap)), option, value)
        assert (ran.code, ran.text, ran.err.count("\n")) == (2, "", 1)


def test_settings_from_a_file(wire: Run, tmp_path: Path) -> None:
    (tmp_path / "client.properties").write_text("# of a cluster\nsecurity.protocol=SSL\n")
    ran = wire("configs", "describe", "--broker-defaults", "-F", str(tmp_path / "client.properties"))
    assert ran.code == 2
    assert "if its listener does not speak TLS, change security.protocol" in ran.err


def test_names_the_extra_if_confluent_kafka_is_missing(wire: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    ran = wire("topics", "list")
    assert (ran.code, ran.err) == (
        2,
        "seglog: talking to Kafka needs confluent_kafka: pip install 'seglog[client]'\n",
    )


def test_own_admin_reports_the_error_of_a_broker(broker: RunningNode) -> None:
    with Admin(parse_bootstrap(broker.bootstrap), 10) as admin:
        with pytest.raises(RequestFailedError, match=r"broker defaults: .*no\.such\.key"):
            admin.alter_broker_defaults({"no.such.key": "1"}, validate_only=False)
        with pytest.raises(RequestFailedError, match="group none: GROUP_ID_NOT_FOUND"):
            admin.delete_offsets("none", [("t", 0)])


def test_refuses_a_response_that_is_not_kafka() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(RequestFailedError, match="not a Kafka broker"):
            Admin(parse_bootstrap(f"127.0.0.1:{server.getsockname()[1]}"), 10)
        thread.join()


def test_deletes_records_before_an_offset_a_time_or_the_end(wire: Run, topic_name: str, tmp_path: Path) -> None:
    wire("topics", "create", topic_name, "-p", "2")
    lines = b"".join(b'{"value":"eA==","partition":1,"timestamp":%d}\n' % stamp for stamp in (1000, 2000, 3000, 4000))
    wire("produce", topic_name, "--records", "--keep-partitions", stdin=lines)
    tried = wire("records", "delete", f"{topic_name}:1", "--before", "2", "--dry-run", "--json").objects
    place = {"topic": topic_name, "partition": 1}
    assert tried == [{**place, "before": 0, "lowWatermark": 2, "done": False, "error": None}]
    done = wire("records", "delete", f"{topic_name}:1", "--before", "2", "--json").objects
    assert done == [{**place, "before": 0, "lowWatermark": 2, "done": True, "error": None}]
    assert wire("records", "delete", topic_name, "--before", "@3001").text.splitlines()[1:] == [
        f"{topic_name}          0         0          0                0",
        f"{topic_name}          1         2          3                1",
    ]
    (tmp_path / "offsets.json").write_text(f'{{"partitions":[{{"topic":"{topic_name}","partition":1,"offset":-1}}]}}')
    (last,) = wire("records", "delete", "--offset-json-file", str(tmp_path / "offsets.json"), "--json").objects
    assert (last["before"], last["lowWatermark"]) == (3, 4)


def test_errors_of_records_delete_name_the_partition(wire: Run, topic_name: str, tmp_path: Path) -> None:
    wire("topics", "create", topic_name)
    above = wire("records", "delete", topic_name, "--before", "9", "--json")
    assert (above.code, above.objects[0]["done"]) == (2, False)
    assert above.err.startswith(f"seglog: topic {topic_name}, partition 0: ")
    (tmp_path / "f").write_text('{"partitions":[{"topic":"t","partition":0}]}')
    for arguments, reason in (
        ((topic_name,), "records delete needs topics with --before, or --offset-json-file"),
        ((topic_name, "--before", "soon"), "--before must be an offset, end or @TIME, not soon"),
        ((f"{topic_name}:7", "--before", "end"), f"topic {topic_name} has no partition 7"),
        (("--offset-json-file", str(tmp_path / "f")), f"{tmp_path}/f, partitions[0]: 'offset' is missing"),
    ):
        ran = wire("records", "delete", *arguments)
        assert (ran.code, ran.text, ran.err) == (2, "", f"seglog: {reason}\n")


def test_leaders_and_replicas_of_a_lone_broker(wire: Run, broker: RunningNode, topic_name: str) -> None:
    wire("topics", "create", topic_name)
    node = broker.node.identity.node_id
    elected = wire("leaders", "elect", topic_name, "--json").objects
    assert elected == [{"topic": topic_name, "partition": 0, "outcome": "not needed", "leader": node, "error": None}]
    assert wire("leaders", "elect", "--all").text == "no partition needs an election\n"
    assert wire("partitions", "reassign", "--list").text == "nothing is moving\n"
    moved = wire("partitions", "reassign", f"{topic_name}-0={node}", "--verify", "--json").objects
    assert moved == [{"topic": topic_name, "partition": 0, "state": "done", "replicas": [node], "wanted": [node]}]
    refused = wire("partitions", "reassign", f"{topic_name}-0=77", "--no-wait")
    assert refused.code == 2
    assert refused.err.startswith(f"seglog: topic {topic_name}, partition 0: ")
    for arguments, reason in (
        (("leaders", "elect"), "leaders elect needs topics, --all-topic-partitions or --path-to-json-file"),
        (("leaders", "elect", "t", "--election-type", "x"), "--election-type must be preferred or unclean, not x"),
        (("partitions", "reassign"), "partitions reassign needs TOPIC-N=1,2,3, or --reassignment-json-file"),
        (("partitions", "reassign", "t"), "'t' is not TOPIC-N=1,2,3"),
        (("partitions", "reassign", "no-such-0=1"), "partition no-such-0 does not exist"),
    ):
        ran = wire(*arguments)
        assert (ran.code, ran.text, ran.err) == (2, "", f"seglog: {reason}\n")


def test_topics_by_name_and_times_before_now(wire: Run, topic_name: str) -> None:
    wire("topics", "create", topic_name, "-c", "retention.ms=7")
    assert "retention.ms" in wire("configs", "describe", topic_name).text
    assert wire("configs", "alter", topic_name, "--delete-config", "retention.ms").code == 0
    assert wire("configs", "describe", topic_name).text == f"topic {topic_name}: nothing is set\n"
    wire("produce", topic_name, stdin=b"now\n")
    for time, expected in (("-1h", 0), ("-2w", 0), ("-0s", None)):
        (found,) = wire("offsets", topic_name, "--time", time, "--json").objects
        assert found["offset"] == expected, time


def test_an_unknown_option_or_command_names_the_nearest(run: Run) -> None:
    for arguments, hint in (
        (("offsets", "--tiem", "1"), "no such option: --tiem; did you mean --time? (see seglog offsets --help)"),
        (("topics", "delet", "t"), "no such command: delet; did you mean delete? (see seglog topics --help)"),
        (("offsets", "--zzz"), "no such option: --zzz (see seglog offsets --help)"),
    ):
        ran = run(*arguments)
        assert (ran.code, ran.err.count("\n")) == (2, 1)
        assert ran.err.endswith(f"{hint}\n")


def test_empty_input_does_not_create_the_topic(wire: Run, topic_name: str) -> None:
    ran = wire("produce", topic_name, "--json")
    (sent,) = ran.objects
    assert (ran.code, sent["records"], sent["partitions"]) == (0, 0, [])
    assert topic_name not in wire("topics", "list").lines
