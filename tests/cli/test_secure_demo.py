"""`seglog serve --secure-demo`: from one command to clients that log in, with nothing secret on a command line."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from confluent_kafka.admin import AdminClient

from seglog.cli.options import OptionError
from seglog.cli.secure_demo import USERS, SecureDemo
from seglog.client.client_config import ClientConfig
from seglog.client.cluster_connections import ClusterConnections
from seglog.core.broker_config import BrokerConfig


@contextmanager
def serving(*arguments: str) -> Iterator[tuple[int, str]]:
    """The process's id, and what it says until it is ready."""
    command = [sys.executable, "-m", "seglog", "serve", "--listen", "127.0.0.1:0", "--log-level", "debug", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.pid, "".join(_until_last(process.stdout))
        finally:
            process.kill()


def _until_last(out: IO[str]) -> Iterator[str]:
    for line in out:
        yield line
        if "scram-sha-512" in line:
            return


def properties(path: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in path.read_text().splitlines())


def test_clients_log_in_with_the_files_that_it_makes(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    passwords = []
    for _ in range(2):  # the second start has the same users and other certificates
        with serving("--secure-demo", str(folder)) as (pid, told):
            for language in ("Java", "Python", "Rust", "Go", "Node.js"):
                assert language in told
            found = properties(folder / "alice.librdkafka.properties")
            passwords.append(found["sasl.password"])
            assert AdminClient({**found, "log_level": 0}).list_topics(timeout=30).brokers
            java = properties(folder / "bob.java.properties")
            with ClusterConnections(ClientConfig.from_mapping(java, use="read")) as cluster:
                assert cluster.metadata().brokers
            secret = [(folder / f"{user}.password").read_text() for user in USERS]
            shown = told + Path(f"/proc/{pid}/cmdline").read_text() + Path(f"/proc/{pid}/environ").read_text()
            assert [one for one in secret if one in shown] == []
            assert found["sasl.password"] in secret
    assert passwords[0] == passwords[1]
    open_files = [path for path in folder.iterdir() if path.is_file() and stat.S_IMODE(path.stat().st_mode) & 0o077]
    assert open_files == []
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert (folder / "log").is_dir()


@pytest.mark.parametrize("listen", [["PLAINTEXT://127.0.0.1:1"], ["SSL://127.0.0.1:1"], ["127.0.0.1:1", "127.0.0.1:2"]])
def test_other_listeners_are_refused(tmp_path: Path, listen: list[str]) -> None:
    with pytest.raises(OptionError, match="--listen HOST:PORT"):
        SecureDemo(str(tmp_path)).keys({"listeners": ",".join(listen)}, listen)
    with pytest.raises(OptionError, match="listener of its own"):
        SecureDemo(str(tmp_path)).keys({"listeners": listen[0]}, [])


def test_it_may_listen_beyond_loopback(tmp_path: Path) -> None:
    from seglog.broker.security.exposure import check_exposure

    keys = SecureDemo(str(tmp_path)).keys({}, ["0.0.0.0:9093"])
    check_exposure(BrokerConfig.from_mapping({**keys, "log.dirs": str(tmp_path)}))
    assert not re.search(r"password", str(keys))
    assert os.listdir(tmp_path)
