"""`seglog mcp` as a process: options that are refused, nothing but the protocol on stdout, and an end at once."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

import pytest

from seglog.storage.directory.log_dir import LogDir
from tests.cli.run import Run, run_here
from tests.mcp.agent import COMMAND

_SECONDS: Final = 120
_FOREVER: Final = "100000"
"""Seconds to wait for a broker: longer than the test may last."""
_HELLO: Final = {
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    return run_here(capfdbinary)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    with LogDir.open(tmp_path / "log") as made:
        made.create_topic("flights")
    return tmp_path / "log"


@contextmanager
def _silent_broker() -> Iterator[tuple[str, socket.socket]]:
    """It accepts connections, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(_SECONDS)
        yield f"127.0.0.1:{server.getsockname()[1]}", server


class _Raw:
    """The process and its pipes, a JSON document a line."""

    def __init__(self, *arguments: str) -> None:
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        self.process = subprocess.Popen([*COMMAND, *arguments], **pipes)
        self.sent: IO[bytes] = self._pipe("stdin")
        self.received: IO[bytes] = self._pipe("stdout")

    def _pipe(self, name: str) -> IO[bytes]:
        pipe: IO[bytes] = getattr(self.process, name)
        return pipe

    def send(self, **message: object) -> None:
        self.sent.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.sent.flush()

    def begin(self) -> None:
        self.send(id=0, **_HELLO)
        assert self.answer()["result"]["serverInfo"]["name"] == "seglog"
        self.send(method="notifications/initialized")

    def call(self, number: int, name: str, **values: object) -> None:
        self.send(id=number, method="tools/call", params={"name": name, "arguments": values})

    def answer(self) -> Any:
        return json.loads(self.received.readline())

    def end(self) -> tuple[int, bytes]:
        """Close stdin; the exit code, and the rest of stdout."""
        self.sent.close()
        rest = self.received.read()
        return self.process.wait(_SECONDS), rest


@contextmanager
def _started(*arguments: str) -> Iterator[_Raw]:
    raw = _Raw(*arguments)
    with raw.process:
        try:
            yield raw
        finally:
            raw.process.kill()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "mcp needs a directory, brokers (-b HOST:PORT), or both"),
        (("{}", "-X", "a=b"), "--property and --command-config need -b HOST:PORT"),
        (("{}/none",), "No such file or directory"),
        (("{}",), "is neither a log directory nor a partition's, and holds no log directory"),
        (("-b", "x:y"), "--bootstrap-server: 'x:y' is not HOST:PORT"),
        (("{}", "--value-format", "xml"), "--value-format must be avro or protobuf, not xml"),
        (("{}", "--registry", "http://localhost:1"), "need --value-format or --key-format"),
        (("{}", "--write"), "no such option: --write"),
    ],
)
def test_refused_options(run: Run, tmp_path: Path, arguments: tuple[str, ...], reason: str) -> None:
    ran = run("mcp", *(one.format(tmp_path) for one in arguments))
    assert (ran.code, reason in ran.err, ran.text) == (2, True, ""), ran.err


def test_a_missing_extra_is_named_with_its_pip_command(
    run: Run, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    ran = run("mcp", directory)
    assert (ran.code, ran.text) == (2, "")
    assert ran.err == "seglog: seglog mcp needs mcp: pip install 'seglog[mcp]'\n"


def test_a_closed_stdin_is_one_sentence(run: Run, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    ran = run("mcp", directory)
    assert (ran.code, ran.err) == (2, "seglog: mcp needs stdin and stdout for its host\n")


def test_the_end_of_stdin_ends_it_in_the_middle_of_a_call(directory: Path) -> None:
    with _silent_broker() as (address, server), _started(str(directory), "-b", address, "--timeout", _FOREVER) as raw:
        raw.begin()
        raw.call(1, "groups")
        connection, _ = server.accept()
        with connection:
            code, rest = raw.end()
            assert (code, [json.loads(one)["id"] for one in rest.splitlines()]) in ((0, []), (0, [1]))


def test_a_cancelled_call_does_not_hold_up_the_next(directory: Path) -> None:
    with _silent_broker() as (address, server), _started(str(directory), "-b", address, "--timeout", _FOREVER) as raw:
        raw.begin()
        raw.call(1, "groups")
        connection, _ = server.accept()
        with connection:
            raw.send(method="notifications/cancelled", params={"requestId": 1})
            raw.call(2, "topics")
            answer = raw.answer()
            assert answer["id"] == 2
            (text,) = answer["result"]["content"]
            assert [one["topic"] for one in json.loads(text["text"])["topics"]] == ["flights"]
            assert raw.end() == (0, b"")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it(directory: Path, number: signal.Signals) -> None:
    with _started(str(directory)) as raw:
        raw.begin()
        raw.process.send_signal(number)
        assert raw.process.wait(_SECONDS) == 0


def test_a_host_that_is_gone_ends_it(directory: Path) -> None:
    with _started(str(directory)) as raw:
        raw.begin()
        raw.received.close()
        raw.call(1, "topics")
        raw.sent.close()
        raw.process.wait(_SECONDS)
        assert b"Traceback" not in raw._pipe("stderr").read()


def test_nothing_but_the_protocol_is_on_stdout(directory: Path) -> None:
    with _started(str(directory)) as raw:
        raw.begin()
        raw.sent.write(b"not JSON\n\xff\xfe\n")
        raw.call(1, "none")
        raw.call(2, "topics")
        raw.send(id=3, method="no/such")
        answers: dict[object, Any] = {}
        while set(answers) < {1, 2, 3}:
            one = raw.answer()
            assert one["jsonrpc"] == "2.0"
            answers[one.get("id")] = one
        assert "there is no tool 'none'; there are " in answers[1]["error"]["message"]
        assert answers[2]["result"]["isError"] is False
        assert raw.end() == (0, b"")


def test_the_environment_of_a_host_is_enough(directory: Path) -> None:
    """Hosts start servers with few variables, and some from the directory /."""
    done = subprocess.run(
        [*COMMAND, str(directory)], input=b"", capture_output=True, env={"PATH": os.defpath}, cwd="/", check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
