"""`seglog serve` as a process: configuration, the ready line, signals, the marker, what a start imports."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from confluent_kafka import Producer

from seglog.cli.serve import default_data_dir
from seglog.protocol.apis import ApiKey
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.formats.paths import CLEAN_SHUTDOWN
from seglog.storage.offline.verify import verify
from tests.broker.broker_thread import Wire


@contextmanager
def serving(*arguments: str, environment: Mapping[str, str] | None = None) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The process and its ready message; killed at the end if it still runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "seglog", "serve", "--json", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    )
    with process:
        try:
            assert process.stdout is not None
            yield process, json.loads(process.stdout.readline() or "{}")
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_broker_with_all_acknowledged_records(number: signal.Signals, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving("--data-dir", str(data), "--listen", "127.0.0.1:0") as (process, ready):
        producer = Producer({"log_level": 0, "bootstrap.servers": ready["bootstrap"], "acks": 1})
        for value in range(1000):
            producer.produce("t", b"%d" % value)
        assert producer.flush(60) == 0
        process.send_signal(number)
        assert process.wait(60) == 0
        assert process.stderr.read() == ""
    assert (data / CLEAN_SHUTDOWN).exists()
    with LogDir.open(data) as directory:
        log = directory.log("t")
        assert log.log_end_offset == log.recovery_point == 1000
    assert not verify([str(data)]).findings


def test_a_console_is_served_beside_the_broker_and_ends_with_it(tmp_path: Path) -> None:
    with serving("--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--console") as (process, _):
        address = urlsplit(json.loads(process.stdout.readline())["url"])
        page = http.client.HTTPConnection(address.netloc, timeout=60)
        page.request("GET", f"{address.path}?{address.query}")
        assert page.getresponse().status == 303
        page.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        with pytest.raises(ConnectionRefusedError):
            page.request("GET", "/")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_imports_exits_with_0(number: signal.Signals, tmp_path: Path) -> None:
    data = tmp_path / "data"
    command = [sys.executable, "-X", "importtime", "-m", "seglog", "serve", "-d", str(data), "-l", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "seglog.core.broker_config" in line.split():
                break  # and most is still to be loaded
        process.send_signal(number)
        # By the same reader, which may have read ahead, up to the middle of a line.
        errors = process.stderr.read()
        assert process.wait(60) == 0
    assert all(line.startswith("import time:") for line in errors.splitlines())


def test_keys_come_from_the_file_the_environment_and_the_command_line(tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    config.write_text(
        "process.roles=broker,controller\nnode.id=5\nlisteners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0\n"
        "controller.listener.names=CONTROLLER\nlistener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\n"
        f"log.dirs={tmp_path / 'data'}\nnum.partitions=2\nlog.retention.hours=24\nnum.partitons=7\n"
    )
    environment = {"KAFKA_NUM_PARTITIONS": "3", "KAFKA_LOG_RETENTION_HOURS": "48"}
    arguments = ("--config", str(config), "--environment", "--set", "log.retention.hours=72")
    with serving(*arguments, environment=environment) as (process, ready):
        assert ready["node"] == 5
        assert ready["directory"] == str(tmp_path / "data")
        with Wire(ready["bootstrap"]) as wire:
            resource = {"resource_type": 4, "resource_name": "5", "configuration_keys": None}
            (result,) = wire.ask(ApiKey.DESCRIBE_CONFIGS, resources=[resource]).results
            found = {entry.name: entry.value for entry in result.configs}
        assert (found["num.partitions"], found["log.retention.hours"]) == ("3", "72")
        process.terminate()
        assert process.wait(60) == 0
        said = process.stderr.read()
    assert "unknown broker configuration 'num.partitons'; did you mean num.partitions?" in said
    assert "process.roles" in said


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--listen", "nowhere"), "NAME://HOST:PORT"),
        (("--listen", "0.0.0.0:0"), "PLAINTEXT lets every client do everything"),
        (("--listen", "SSL://127.0.0.1:0"), "needs a private key"),
        (("--user", "a,b"), "seglog users add"),
        (("--password-file", "x"), "--password-file needs --user"),
        (("--set", "num.partitions"), "KEY=VALUE"),
        (("--set", "num.partitions=0"), "num.partitions"),
        (("--set", "log.dirs=/a,/b"), "one log directory"),
        (("--config", "/no/such/file"), "/no/such/file"),
        (("--log-level", "loud"), "loud"),
    ],
)
def test_configuration_errors_are_one_line(arguments: tuple[str, ...], reason: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "seglog", "serve", "--set", f"log.dir={tmp_path / 'data'}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert reason in done.stderr
    assert done.stderr.count("\n") == 1


def test_refuses_a_second_server_on_the_directory(tmp_path: Path) -> None:
    with serving("-d", str(tmp_path), "-l", "127.0.0.1:0"):
        command = [sys.executable, "-m", "seglog", "serve", "-d", str(tmp_path), "-l", "127.0.0.1:0"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert str(tmp_path) in done.stderr


def test_data_directory_defaults_to_the_users(tmp_path: Path) -> None:
    environment = {"XDG_DATA_HOME": str(tmp_path)}
    with serving("--listen", "127.0.0.1:0", environment=environment) as (_, ready):
        assert ready["directory"] == str(tmp_path / "seglog")
    assert default_data_dir({"HOME": "/h", "XDG_DATA_HOME": "relative"}) == "/h/.local/share/seglog"


def test_a_started_broker_imports_no_heavy_modules(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys\n"
        "from seglog.broker.app import Node\n"
        "from seglog.core.broker_config import BrokerConfig\n"
        "from seglog.broker.dispatch import warm_up\n"
        "async def main():\n"
        "    config = {'log.dirs': sys.argv[1], 'listeners': 'PLAINTEXT://127.0.0.1:0'}\n"
        "    async with Node(BrokerConfig.from_mapping(config)):\n"
        "        await warm_up()\n"
        "asyncio.run(main())\n"
        "heavy = {'numpy', 'numba', 'pyarrow', 'pyspark', 'pandas', 'typer', 'rich', 'sqlite3', 'kazoo'}\n"
        "heavy &= set(sys.modules)\n"
        "sys.exit(f'loaded: {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "log")], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
