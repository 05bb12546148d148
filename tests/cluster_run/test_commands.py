"""`seglog cluster up` and the other commands about clusters, with brokers of ours."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.run import Ran, Run, run_here, seglog_command
from tests.kit.waiting import wait_until

SECONDS = 60
SOON = ("--set", "broker.session.timeout.ms=2000", "--set", "offsets.topic.num.partitions=1")


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    return run_here(capfdbinary)


class Up:
    """A running `seglog cluster up`, and what it says."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.ready = self.says()

    def says(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        found: dict[str, Any] = json.loads(self.process.stdout.readline() or "{}")
        return found

    @property
    def bootstrap(self) -> str:
        return str(self.ready["bootstrap"])

    @property
    def pids(self) -> dict[int, int]:
        return {broker["node"]: broker["pid"] for broker in self.ready["brokers"]}

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(SECONDS)


@contextmanager
def up(path: Path, *arguments: str) -> Iterator[Up]:
    command = [sys.executable, "-m", "seglog", "cluster", "up", "-d", str(path), "--json", *SOON, *arguments]
    with (path.parent / "up.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    with process:
        try:
            yield Up(process)
        finally:
            if process.poll() is None:
                process.terminate()


@contextmanager
def started(command: str) -> Iterator[dict[str, Any]]:
    """A broker by its command line; what it says when it is ready."""
    words = [sys.executable, "-m", *shlex.split(command), "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline() or "{}")
        finally:
            process.terminate()


def until_found(run: Run, kinds: list[str], *where: str) -> Ran:
    """`status`, when these are what it finds. A broker's end is found step by step: it is silent, its session is over,
    and the controller with it if it was that, and then another one decides; and one broker hears of a new topic, or of
    another leader, a moment after another."""
    looks: list[Ran] = []

    def is_found() -> bool:
        looks.append(run("cluster", "status", "--json", *where))
        return [one["kind"] for one in looks[-1].objects[0]["findings"]] == kinds

    wait_until(is_found, f"findings {kinds}")
    return looks[-1]


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_cluster_on_this_machine_loses_a_broker_goes_on_and_grows(memory: Path, run: Run) -> None:
    path = memory / "cluster"
    with up(path, "--listen", "127.0.0.1:0") as first:
        where = ("-b", first.bootstrap)
        assert [broker["node"] for broker in first.ready["brokers"]] == [1, 2, 3]
        assert run("topics", "create", "t", "-p", "4", *where).code == 0
        (described,) = run("topics", "describe", "t", "--json", *where).objects
        assert {len(one["replicas"]) for one in described["partitions"]} == {3}
        until_found(run, [], *where)
        status = run("cluster", "status", "--all", *where)
        assert (status.code, status.lines[-1]) == (0, "healthy")
        os.kill(first.pids[2], signal.SIGKILL)
        told = first.says()
        assert (told["died"], told["why"]) == (2, "broker 2 was killed by SIGKILL")
        status = until_found(run, ["under-replicated"], "--store", first.ready["store"])
        (finding,) = status.objects[0]["findings"]
        assert status.code == 1
        assert finding["advice"].startswith("start broker 2")
        assert (none := run("cluster", "remove-broker", "9", *where)).code == 0
        assert none.lines == ["broker 9 is not running, and no partition has a replica on it"]
        with started(told["start"]) as by_hand:  # the command that was said
            assert by_hand["bootstrap"] == first.ready["brokers"][1]["bootstrap"]
            replaced = run("cluster", "replace-disk", "2", *where)
            assert replaced.lines[-1] == "broker 2 has all its 4 replicas in sync"
        assert first.end(signal.SIGTERM) == 2
        assert all(map(is_gone, first.pids.values()))

    with up(path, "--nodes", "4") as again:
        known = {broker["node"]: broker["bootstrap"] for broker in first.ready["brokers"]}
        assert {broker["node"]: broker["bootstrap"] for broker in again.ready["brokers"][:3]} == known
        assert again.ready["cluster"] == first.ready["cluster"]
        where = ("-b", again.bootstrap)
        replaced = run("cluster", "replace-disk", "2", *where)
        assert replaced.lines[-1] == "broker 2 has all its 4 replicas in sync"
        added = run("cluster", "add-broker", "--json", *where)
        assert added.objects[-1] == {"finished": True, "node": [4], "moved": 3}
        shown = run("cluster", "set-replicas", "4", "t", "--dry-run", *where)
        assert (shown.code, len(shown.lines)) == (0, 4)
        assert all(len(line.partition(" -> ")[2].split(",")) == 4 for line in shown.lines)
        widened = run("cluster", "set-replicas", "4", "--pattern", "t.*", "--json", *where)
        assert widened.objects[-1] == {"finished": True, "topics": ["t"], "replicas": 4, "moved": 4}
        refused = run("cluster", "remove-broker", "2", *where)
        assert refused.code == 2
        assert "keep fewer replicas: seglog cluster set-replicas 3 t" in refused.err
        assert run("cluster", "set-replicas", "3", "t", *where).lines[-1] == (
            "t: 3 replicas of each partition, 4 partitions changed"
        )
        for words, why in (
            (("5", "t"), "5 replicas need as many brokers, and 4 are registered"),
            (("2", "none"), "topic none does not exist"),
            (("2",), "name topics, or use --pattern or --all-internal"),
            (("2", "--pattern", "("), "--pattern ( is not a regular expression"),
            (("2", "--all-internal"), "there is no internal topic yet"),
        ):
            found = run("cluster", "set-replicas", *words, *where)
            assert found.code == 2
            assert why in found.err
        removed = run("cluster", "remove-broker", "2", *where)
        assert (removed.code, removed.err) == (0, "")
        (document,) = until_found(run, [], *where).objects
        assert document["healthy"]
        assert {node for one in document["partitions"] for node in one["replicas"]} == {1, 3, 4}
        assert again.end(signal.SIGKILL) == -signal.SIGKILL
        wait_until(lambda: all(map(is_gone, again.pids.values())), "the brokers to follow who has started them")


def test_repeated_sigterm_ends_cluster_up_and_all_its_brokers(memory: Path) -> None:
    with up(memory / "cluster") as cluster:
        while cluster.process.poll() is None:
            cluster.process.send_signal(signal.SIGTERM)
        assert cluster.process.returncode in (0, 2), "2: a broker had to be killed"
        assert all(map(is_gone, cluster.pids.values()))


def test_a_signal_before_a_cluster_is_ready_is_an_error(memory: Path) -> None:
    command = [sys.executable, "-m", "seglog", "cluster", "up", "-d", str(memory / "cluster"), "-l", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("starting brokers 1, 2, 3 on sqlite:")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, out) == (2, "")
    assert err.endswith("seglog: stopped before the cluster was ready\n")


def test_invalid_arguments_of_cluster_up_give_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text(
        json.dumps({"form": 1, "store": "sqlite:/elsewhere", "nodes": {"1": "127.0.0.1:1", "2": "127.0.0.1:2"}})
    )
    for arguments, reason in (
        (("--store", "sqlite:/here"), "belongs to the cluster in sqlite:/elsewhere, not in sqlite:/here"),
        (("--nodes", "1"), "has 2 brokers, not 1"),
        (("--listen", "nowhere"), "--listen: 'nowhere' is neither HOST:PORT nor"),
        (("--set", "x"), "--set 'x' is not KEY=VALUE"),
    ):
        ran = seglog_command("cluster", "up", "-d", tmp_path, *arguments)
        assert (ran.code, ran.out) == (2, b"")
        assert reason in ran.err
        assert len(ran.err.splitlines()) == 1
    (tmp_path / "file").touch()
    for option, value, reason in (
        ("--store", "mysql:x", "'mysql:x' is not the address of a metadata store"),
        ("--set", "log.dirs=/a,/b", "--set log.dirs: each broker has its own"),
        ("--data-dir", tmp_path / "file", "file is not a directory"),
    ):
        ran = seglog_command("cluster", "up", "-d", tmp_path / "new", option, value)
        assert (ran.code, ran.out, len(ran.err.splitlines())) == (2, b"", 1)
        assert reason in ran.err
        assert not (tmp_path / "new").exists()
    (tmp_path / "cluster.json").write_text("{")
    ran = seglog_command("cluster", "up", "-d", tmp_path)
    assert (ran.code, ran.err.count("cluster.json cannot be read")) == (2, 1)


def test_a_broker_that_does_not_start_ends_all_and_is_named(tmp_path: Path) -> None:
    ran = seglog_command("cluster", "up", "-d", tmp_path / "c", "-l", "127.0.0.1:0", "--set", "log.segment.bytes=x")
    assert ran.code == 2
    assert "has ended with exit code 2: " in ran.err
    assert "log.segment.bytes" in ran.err


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path, run: Run) -> None:
    store = f"sqlite:{tmp_path}/none"
    ran = run("cluster", "status", "--store", store)
    advice = f"there is no cluster at {store}; to begin one: seglog cluster up --store {store}"
    assert (ran.code, ran.err) == (2, f"seglog: {advice}\n")
    assert not (tmp_path / "none").exists()
    ran = run("cluster", "status", "--store", "a-name")
    assert (ran.code, len(ran.err.splitlines())) == (2, 1)
    assert ran.err.startswith("seglog: there is no cluster at 'a-name': the address of a metadata store is sqlite:")
    sqlite3.connect(tmp_path / "none").close()
    assert run("cluster", "status", "--store", store).err == f"seglog: {advice}\n"
