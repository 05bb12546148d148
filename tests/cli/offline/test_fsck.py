"""`seglog fsck`: output, options and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from seglog.core.fs import OsFs
from tests.cli.run import Run
from tests.storage.offline.verify.verified import LOG, batches, flip, make_damaged_pair


@pytest.fixture
def replicas(tmp_path: Path) -> tuple[Path, Path]:
    return make_damaged_pair(tmp_path)


def test_reports_damage_and_what_was_compared(run: Run, replicas: tuple[Path, Path]) -> None:
    first, second = replicas
    ran = run("fsck", *replicas)
    assert ran.code == 1
    assert ran.lines[0].startswith(f"damage: {first / 't-0' / LOG}, position ")
    assert ran.lines[-1] == "1 partition compared: none different"
    ran = run("fsck", second)
    assert (ran.code, ran.lines[-1]) == (0, "0 partitions compared: none different; 1 in one directory only")


def test_repairs_after_a_plan(run: Run, replicas: tuple[Path, Path]) -> None:
    first, second = replicas
    damaged = (first / "t-0" / LOG).read_bytes()
    planned = run("fsck", *replicas, "--repair", "--dry-run")
    assert planned.code == 1
    assert f": as in {second / 't-0' / LOG} (stored CRC" in planned.text
    asked = run("fsck", *replicas, "--repair")
    assert (asked.code, asked.err) == (
        2,
        "seglog: nothing was changed: stdin is not a terminal; --yes repairs without asking\n",
    )
    lock = OsFs().lock(str(first / ".lock"))
    in_use = run("fsck", *replicas, "--repair", "--yes")
    lock.release()
    assert in_use.code == 2
    assert "is locked" in in_use.err
    assert (first / "t-0" / LOG).read_bytes() == damaged
    done = run("fsck", *replicas, "--repair", "--yes")
    assert done.code == 0, done.text
    assert done.lines[-2].endswith(": no damage")
    assert (first / "t-0" / LOG).read_bytes() == (second / "t-0" / LOG).read_bytes()


def test_prints_json(run: Run, replicas: tuple[Path, Path]) -> None:
    first, second = replicas
    ran = run("fsck", *replicas, "--repair", "--yes", "--json")
    told = json.loads(ran.text)
    assert told["damaged"]
    assert told["verified"]["findings"][0]["file"] == str(first / "t-0" / LOG)
    (partition,) = told["partitions"]
    assert [one["path"] for one in partition["replicas"]] == [str(first / "t-0"), str(second / "t-0")]
    assert partition["from"] == 0
    assert partition["to"] == partition["replicas"][0]["highWatermark"]
    (planned,) = told["repairs"]
    assert (planned["place"], planned["refused"]) == (str(first / "t-0"), [])
    assert len(told["backups"]) == 1
    assert not told["afterRepair"]["damaged"]
    assert ran.code == 0


def test_says_where_replicas_differ_and_which_is_right(run: Run, replicas: tuple[Path, Path]) -> None:
    first, second = replicas
    path = second / "t-0" / LOG
    data = path.read_bytes()
    entry = batches(data)[3]
    path.write_bytes(flip(data, entry.position + 15, 3))  # its leader epoch, which no CRC covers
    ran = run("fsck", *replicas)
    (line,) = [line for line in ran.lines if line.startswith("differ: ")]
    assert line.startswith(f"differ: t-0, offsets {entry.offset} to ")
    assert f"; right is {first / 't-0'} (leader epoch " in line


def test_wrong_arguments_are_refused(run: Run, tmp_path: Path, replicas: tuple[Path, Path]) -> None:
    first, _ = replicas
    for arguments, reason in (
        (("",), "a path is empty"),
        ((first, first), "a directory is named twice"),
        ((first, first / "t-0"), f"{first} and {first / 't-0'} have the same directory {first / 't-0'}: name it once"),
        ((first, "--yes"), "--yes and --dry-run need --repair"),
        ((first, "--repair", "--json"), "--json cannot ask for confirmation"),
        (("broker1:/var/kafka",), "a directory of another host is read by seglog spark fsck"),
        ((tmp_path,), "holds log directories; name one of a, b"),
        ((tmp_path / "none",), "No such file or directory"),
    ):
        ran = run("fsck", *arguments)
        assert (ran.code, ran.err.count("\n")) == (2, 1), arguments
        assert reason in ran.err
