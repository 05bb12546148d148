"""The control of `seglog serve` over HTTP, by a stock HTTP client and by hand."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from seglog.core.errors import InvalidConfigError
from seglog.faults.control_pages import MAX_BODY, openapi
from seglog.faults.controlled_broker import ControlledBroker

_PAGE: Final = Path(__file__).parents[2] / "docs" / "control.md"


class Served(NamedTuple):
    bootstrap: str
    port: int
    token: str

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


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    command = [sys.executable, "-m", "seglog", "serve", "--json", "--until-eof", "--listen", "127.0.0.1:0"]
    command += ["--data-dir", str(tmp_path_factory.mktemp("data")), "--control", "127.0.0.1:0"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    ready = json.loads(process.stdout.readline())
    host, _, port = ready["control"].rpartition(":")
    assert host == "http://127.0.0.1"
    yield Served(ready["bootstrap"], int(port), ready["token"])
    process.stdin.close()
    assert process.wait(60) == 0
    process.stdout.close()


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
        ("POST", "/v1/faults", {"faults": 5}, 400, "is no array"),
        ("POST", "/v1/faults", {"faults": [5]}, 400, "FaultError"),
        ("POST", "/v1/faults", {"faults": [{"effect": "x"}]}, 400, "no effect 'x'"),
        ("POST", "/v1/faults", {"faults": [{"effect": "lose"}] * 1001}, 400, "1000 faults at a time"),
        ("POST", "/v1/faults", {"faults": [], "more": 1}, 400, "no field 'more'"),
        ("POST", "/v1/faults", b"{", 400, "not JSON"),
        ("POST", "/v1/faults", b"[" * 100_000, 400, "not JSON"),
        ("POST", "/v1/faults", b"[]", 400, "not an object"),
        ("DELETE", "/v1/faults/x", None, 400, "remove"),
        ("DELETE", "/v1/faults/999", None, 400, "no fault 999"),
        ("POST", "/v1/clock/advance", {"seconds": -1}, 400, "cannot move"),
        ("POST", "/v1/clock/advance", {"seconds": True}, 400, "is no number"),
        ("POST", "/v1/clock/advance", b'{"seconds": NaN}', 400, "cannot move"),
        ("POST", "/v1/topics", {"name": "a b"}, 400, "Topic name is invalid"),
        ("POST", "/v1/topics", {"name": "x", "records": [{"value": 1}]}, 400, "this is no topic"),
        ("POST", "/v1/reset", {"topics": {"t": 5}}, 400, "this is no topic"),
    ],
)
def test_says_what_is_wrong(served: Served, method: str, path: str, body: object, status: int, why: str) -> None:
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


def test_the_page_shows_the_description_that_is_served() -> None:
    shown = json.dumps(openapi(), indent=1)
    assert shown in _PAGE.read_text(), f"docs/control.md has an older description; it is now\n{shown}"
