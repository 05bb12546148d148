"""The control of `seglog serve` over HTTP, by a stock HTTP client and by hand."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from seglog.core.errors import InvalidConfigError
from seglog.faults.broker_defaults import TEST_SETTINGS
from seglog.faults.control_pages import MAX_BODY, OPERATIONS, openapi
from seglog.faults.controlled_broker import ControlledBroker
from seglog.faults.fault import Fault
from seglog.faults.topic_fixture import TopicRecord
from seglog.storage.directory.log_dir import LogDir
from tests.broker.python_clients import AdminClient, ConfigResource, ResourceType
from tests.kit.ports import free_port

_PAGE: Final = Path(__file__).parents[2] / "docs" / "control.md"


class Served(NamedTuple):
    bootstrap: str
    port: int
    token: str
    node: int

    def ask(
        self, method: str, path: str, body: object = None, headers: dict[str, str | None] | None = None
    ) -> tuple[int, Any]:
        """The status and the document of an answer. A header that is None is left out."""
        sent: dict[str, str | None] = {"Authorization": f"Bearer {self.token}"}
        if body is not None:
            sent["Content-Type"] = "application/json"
        sent |= headers or {}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body)
        connection.request(method, path, data, {name: one for name, one in sent.items() if one is not None})
        answer = connection.getresponse()
        found = answer.read()
        connection.close()
        return answer.status, json.loads(found) if found.startswith((b"{", b"[")) else found


class Serving:
    """``with Serving(path, …) as served``: `seglog serve --control`, ended by the end of its input."""

    def __init__(self, path: Path, *options: str) -> None:
        command = [sys.executable, "-m", "seglog", "serve", "--json", "--until-eof", "--data-dir", str(path)]
        self._command = [*command, "--control", "127.0.0.1:0", *options]

    def __enter__(self) -> Served:
        self.process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        ready = json.loads(self.process.stdout.readline())
        host, _, port = ready["control"].rpartition(":")
        assert host == "http://127.0.0.1"
        return Served(ready["bootstrap"], int(port), ready["token"], ready["node"])

    def __exit__(self, *_: object) -> None:
        self.process.communicate(timeout=60)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    serving = Serving(tmp_path_factory.mktemp("data"), "--listen", "127.0.0.1:0")
    with serving as served:
        yield served
    assert serving.process.returncode == 0


def produce(served: Served, value: bytes) -> str | None:
    errors: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": served.bootstrap})
    producer.produce("t", value, on_delivery=lambda error, _: errors.append(error), partition=0)
    assert producer.flush(30) == 0
    return None if errors[0] is None else errors[0].name()


def end_offset(served: Served) -> tuple[int, int]:
    consumer = Consumer({"bootstrap.servers": served.bootstrap, "group.id": "-"})
    found = consumer.get_watermark_offsets(TopicPartition("t", 0), 30)
    consumer.close()
    assert found is not None
    return found


def test_faults_clock_topics_and_reset(served: Served) -> None:
    topics = {"t": {"records": [{"value": "one", "key": "k"}, {"value": {"base64": "AAE="}}]}}
    assert served.ask("POST", "/v1/reset", {"topics": topics}) == (200, {})
    assert end_offset(served) == (0, 2)
    fault = {"effect": "error", "api": "Produce", "error": "NOT_LEADER_OR_FOLLOWER", "topic": "t"}
    status, made = served.ask("POST", "/v1/faults", {"faults": [fault], "in_order": True})
    assert (status, len(made["ids"])) == (200, 1)
    assert produce(served, b"1") is None
    status, found = served.ask("GET", "/v1/faults")
    (report,) = found["faults"]
    assert (report["id"], report["fault"], report["fired"]) == (made["ids"][0], fault, 1)
    assert served.ask("GET", f"/v1/faults/{report['id']}") == (200, report)
    assert served.ask("DELETE", f"/v1/faults/{made['ids'][0]}") == (200, {})
    assert served.ask("GET", "/v1/faults") == (200, {"faults": []})
    assert served.ask("DELETE", "/v1/faults") == (200, {})
    before = served.ask("GET", "/v1/clock")[1]
    assert served.ask("POST", "/v1/clock/advance", {"seconds": 8 * 86_400}) == (200, {})
    after = served.ask("GET", "/v1/clock")[1]
    assert after["ahead_seconds"] - before["ahead_seconds"] == 8 * 86_400
    assert end_offset(served) == (3, 3)
    assert served.ask("POST", "/v1/topics", {"name": "u", "partitions": 2}) == (200, {})
    assert served.ask("GET", "/openapi.json") == (200, openapi())


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "why"),
    [
        ("GET", "/", None, 404, "no such operation"),
        ("PUT", "/v1/faults", None, 405, "no such operation"),
        ("POST", "/v1/faults", {}, 400, "'faults' is missing"),
        ("POST", "/v1/faults", {"faults": 5}, 400, "must be of type array"),
        ("POST", "/v1/faults", {"faults": [5]}, 400, "FaultError"),
        ("POST", "/v1/faults", {"faults": [{"effect": "x"}]}, 400, "no effect 'x'"),
        ("POST", "/v1/faults", {"faults": [{"effect": "lose"}] * 1001}, 400, "1000 faults at a time"),
        ("POST", "/v1/faults", {"faults": [], "more": 1}, 400, "no field 'more'"),
        ("POST", "/v1/faults", b"{", 400, "not JSON"),
        ("POST", "/v1/faults", b"[" * 100_000, 400, "not JSON"),
        ("POST", "/v1/faults", b"[]", 400, "not an object"),
        ("DELETE", "/v1/faults/x", None, 400, "remove"),
        ("DELETE", "/v1/faults/999", None, 400, "no fault 999"),
        ("GET", "/v1/faults/999", None, 400, "no fault 999"),
        ("GET", "/v1/faults/x", None, 400, "report"),
        ("POST", "/v1/restart", {"kill": True}, 400, "no field 'kill'; there are none"),
        ("POST", "/v1/stop", b"{", 400, "not JSON"),
        ("POST", "/v1/recording", {}, 400, "'path' is missing"),
        ("POST", "/v1/recording", {"path": "session.jsonl"}, 400, "is not absolute"),
        ("POST", "/v1/recording", {"path": "/proc/none/x"}, 400, "FileNotFoundError"),
        ("POST", "/v1/replay", {"path": __file__}, 400, "is not a recording"),
        ("POST", "/v1/replay", {"path": "/proc/none/x"}, 400, "FileNotFoundError"),
        ("POST", "/v1/clock/advance", {"seconds": -1}, 400, "cannot move"),
        ("POST", "/v1/clock/advance", {"seconds": True}, 400, "must be of type number"),
        ("POST", "/v1/clock/advance", b'{"seconds": NaN}', 400, "cannot move"),
        ("POST", "/v1/topics", {"name": "a b"}, 400, "Topic name is invalid"),
        ("POST", "/v1/topics", {"name": "x", "records": [{"value": 1}]}, 400, "this is not a topic"),
        ("POST", "/v1/topics", {"name": "x", "records": [{"vlaue": "1"}]}, 400, "no field 'vlaue'"),
        ("POST", "/v1/topics", {"name": "x", "replication": 2}, 400, "InvalidReplicationFactorError"),
        ("POST", "/v1/reset", {"topics": {"t": 5}}, 400, "this is not a topic"),
        ("POST", "/v1/reset", {"topics": {"t": {"partition": 3}}}, 400, "no field 'partition'"),
    ],
)
def test_invalid_requests_get_a_status_and_the_reason(
    served: Served, method: str, path: str, body: object, status: int, why: str
) -> None:
    found, document = served.ask(method, path, body)
    assert (found, why in document["error"]) == (status, True), document


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": None}, 401),
        ({"Authorization": "Bearer "}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "Basic {token}"}, 401),
        ({"Host": "example.com"}, 403),
        ({"Host": "127.0.0.1:1"}, 403),
        ({"Host": "127.0.0.1.example.com:{port}"}, 403),
        ({"Host": "localhost:{port}"}, 200),
        ({"Origin": "http://example.com"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "https://127.0.0.1:{port}"}, 403),
        ({"Origin": "http://127.0.0.1:{port}"}, 200),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": None}, 415),
        ({"Content-Type": "application/json; charset=utf-8"}, 200),
    ],
)
def test_only_a_program_with_the_token_controls_it(served: Served, headers: dict[str, str | None], status: int) -> None:
    filled = {
        name: None if value is None else value.format(port=served.port, token=served.token)
        for name, value in headers.items()
    }
    assert served.ask("POST", "/v1/clock/advance", b'{"seconds": 0}', filled)[0] == status


def test_bodies_have_a_limit(served: Served) -> None:
    def send(head: str) -> bytes:
        with socket.create_connection(("127.0.0.1", served.port), 30) as raw:
            raw.sendall(f"POST /v1/faults HTTP/1.1\r\n{head}\r\n\r\n".encode())
            return raw.recv(100).split(b"\r\n")[0]

    assert b"413" in send(f"Content-Length: {MAX_BODY + 1}")
    assert b"413" in send("Content-Length: 99999999999999999999")
    assert b"400" in send("Content-Length: -1")
    assert b"400" in send("Content-Length: 1\r\nContent-Length: 2")
    assert b"400" in send("Host: a\r\nHost: b")
    assert b"411" in send("Transfer-Encoding: chunked")
    largest = json.dumps({"faults": []}).encode().ljust(MAX_BODY)
    assert served.ask("POST", "/v1/faults", largest) == (200, {"ids": []})


def test_a_session_is_recorded_and_played_again(served: Served, tmp_path: Path) -> None:
    path, other = tmp_path / "session.jsonl", tmp_path / "notes"
    served.ask("POST", "/v1/reset", {"topics": {"t": {}}})
    other.write_text("not to be replaced")
    status, problem = served.ask("POST", "/v1/recording", {"path": str(other)})
    assert (status, "is not a recording" in problem["error"]) == (400, True)
    assert other.read_text() == "not to be replaced"
    assert served.ask("POST", "/v1/recording", {"path": str(path)}) == (200, {})
    status, problem = served.ask("POST", "/v1/recording", {"path": str(path)})
    assert (status, "under way" in problem["error"]) == (400, True)
    assert produce(served, b"1") is None
    assert served.ask("DELETE", "/v1/recording") == (200, {})
    assert served.ask("DELETE", "/v1/recording") == (200, {})
    status, found = served.ask("POST", "/v1/replay", {"path": str(path)})
    (difference,) = found["differences"]
    assert (status, difference["api"], difference["recorded"], difference["replayed"]) == (200, "Produce", 0, 1)
    assert end_offset(served) == (0, 2)
    assert served.ask("POST", "/v1/recording", {"path": str(path)}) == (200, {})  # it is replaced
    assert served.ask("POST", "/v1/restart") == (200, {})  # it ends
    assert len(path.read_text().splitlines()) == 1
    pid = served.ask("GET", "/v1/broker")[1]["pid"]
    assert str(path) not in {os.path.realpath(one) for one in Path(f"/proc/{pid}/fd").iterdir()}
    assert served.ask("POST", "/v1/recording", {"path": str(path)}) == (200, {})
    assert served.ask("DELETE", "/v1/recording") == (200, {})


def test_a_broker_stops_and_starts_on_its_port_and_data(served: Served) -> None:
    served.ask("POST", "/v1/reset", {"topics": {"t": {"records": [{"value": "1"}]}}})
    served.ask("POST", "/v1/clock/advance", {"seconds": 60})
    served.ask("POST", "/v1/faults", {"faults": [{"effect": "lose", "api": "Produce"}]})
    ahead = served.ask("GET", "/v1/clock")[1]["ahead_seconds"]
    status, before = served.ask("GET", "/v1/broker")
    assert (status, before["running"], before["bootstrap"]) == (200, True, served.bootstrap)
    assert served.ask("POST", "/v1/start") == (200, {})
    for _ in range(2):
        assert served.ask("POST", "/v1/stop") == (200, {})
        assert served.ask("GET", "/v1/broker") == (200, {**before, "running": False})
    host, _, port = served.bootstrap.rpartition(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), 30)
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((host, int(port)))
    for method, path, body in (
        ("GET", "/v1/faults", None),
        ("GET", "/v1/clock", None),
        ("POST", "/v1/reset", {}),
        ("POST", "/v1/replay", {"path": "/x"}),
    ):
        status, problem = served.ask(method, path, body)
        assert (status, problem["error"]) == (400, "FaultError: the broker is stopped: start it first")
    assert served.ask("POST", "/v1/start") == (200, {})
    assert served.ask("GET", "/v1/broker") == (200, before)
    assert served.ask("GET", "/v1/faults") == (200, {"faults": []})
    assert served.ask("GET", "/v1/clock")[1]["ahead_seconds"] == ahead
    assert produce(served, b"2") is None
    assert served.ask("POST", "/v1/restart") == (200, {})
    assert end_offset(served) == (0, 2)


def test_kill_ends_the_process_without_an_answer(tmp_path: Path) -> None:
    serving = Serving(tmp_path, "--listen", f"127.0.0.1:{free_port()}")
    with serving as served:
        served.ask("POST", "/v1/topics", {"name": "t"})
        assert produce(served, b"1") is None
        with pytest.raises(ConnectionError):
            served.ask("POST", "/v1/kill")
        assert serving.process.wait(60) == -signal.SIGKILL
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    with serving as served:
        assert end_offset(served) == (0, 1)
        assert served.ask("POST", "/v1/stop") == (200, {})
        assert (tmp_path / ".kafka_cleanshutdown").exists()
    assert serving.process.returncode == 0


def test_failed_start_is_reported_and_can_be_retried(tmp_path: Path) -> None:
    serving = Serving(tmp_path, "--listen", "127.0.0.1:0")
    with serving as served:
        assert served.ask("POST", "/v1/stop") == (200, {})
        with LogDir.open(str(tmp_path)):
            status, problem = served.ask("POST", "/v1/start")
            assert (status, problem["error"].partition(":")[0]) == (400, "LogDirInUseError")
            assert served.ask("GET", "/v1/broker")[1]["running"] is False
        assert served.ask("POST", "/v1/start") == (200, {})
    assert serving.process.returncode == 0


def test_a_process_ends_while_its_broker_starts_again(tmp_path: Path) -> None:
    store = tmp_path / "store"
    serving = Serving(tmp_path / "data", "--listen", "127.0.0.1:0", "--node-id", "1", "--cluster", f"sqlite:{store}")
    with serving as served, closing(sqlite3.connect(store, isolation_level=None)) as other:
        assert served.ask("POST", "/v1/stop") == (200, {})
        other.execute("BEGIN EXCLUSIVE")
        request = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
        request.request("POST", "/v1/start", headers={"Authorization": f"Bearer {served.token}"})
        assert served.ask("GET", "/v1/broker")[1]["running"] is False
        serving.process.terminate()
        with pytest.raises(http.client.RemoteDisconnected):
            request.getresponse()
        request.close()
        assert serving.process.wait(60) == 0
        assert serving.process.stderr is not None
        assert serving.process.stderr.read() == ""


def test_it_has_the_defaults_of_a_broker_for_tests(tmp_path: Path) -> None:
    with Serving(tmp_path, "--listen", "127.0.0.1:0", "--set", "offsets.topic.num.partitions=3") as served:
        resource = ConfigResource(ResourceType.BROKER, str(served.node))
        admin = AdminClient({"bootstrap.servers": served.bootstrap})
        (found,) = admin.describe_configs([resource]).values()
        entries = found.result(30)
        assert {name: entries[name].value for name in TEST_SETTINGS} == {
            **TEST_SETTINGS,
            "offsets.topic.num.partitions": "3",
        }


def test_a_token_comes_from_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("a-token-of-sixteen-characters\n")
    os.chmod(path, 0o644)
    with pytest.raises(InvalidConfigError, match="chmod 600"):
        ControlledBroker("127.0.0.1:0", str(path))
    os.chmod(path, 0o600)
    ControlledBroker("127.0.0.1:0", str(path))
    path.write_text("short")
    with pytest.raises(InvalidConfigError, match="at least 16"):
        ControlledBroker("127.0.0.1:0", str(path))


@pytest.mark.parametrize("where", ["0.0.0.0:1", "192.168.0.1:1", "example.com:1", "[::]:1", "127.0.0.1"])
def test_only_this_machine_controls_a_broker(where: str) -> None:
    with pytest.raises(InvalidConfigError, match="--control"):
        ControlledBroker(where, None)


def test_the_description_has_the_types_of_all_fields() -> None:
    schemas = openapi()["components"]["schemas"]
    fault = schemas["Fault"]["properties"]
    assert fault.keys() == {one.name for one in fields(Fault)} - {"where"}
    assert fault["then"] == {"type": "string", "enum": ["close", "reset", "hang"], "default": "close"}
    assert fault["times"] == {"type": ["integer", "null"], "default": 1}
    assert schemas["Record"]["properties"].keys() == set(TopicRecord._fields)


def test_the_page_names_all_requests() -> None:
    page = _PAGE.read_text()
    for (method, path), operation in OPERATIONS.items():
        names = (f"`{name}`{'?' * kind.endswith('?')}" for name, kind in operation.body.items())
        assert f"| `{method} {path}` | {', '.join(names)} | {operation.summary} |\n" in page
