"""`seglog verify` and `seglog repair`: output and exit codes."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from seglog.storage.formats.paths import OWN_DIRECTORY
from tests import golden
from tests.cli.run import Run, seglog_command, start_seglog
from tests.kafka.jars import CURRENT, OLD
from tests.storage.offline.verify.verified import batches, bytes_of, flip, look, make_dir, open_dir

LOG = f"{0:020d}.log"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    make_dir(tmp_path / "logs", size=20_000)
    return tmp_path / "logs"


def damage_batch(logs: Path, number: int) -> tuple[int, int]:
    """Damage a batch; returns its position and offset."""
    path = logs / "t-0" / LOG
    data = path.read_bytes()
    entry = batches(data)[number]
    path.write_bytes(flip(data, entry.position + 70, 0))
    return entry.position, entry.offset


# verify


def test_a_sound_directory(run: Run, logs: Path) -> None:
    ran = run("verify", logs)
    assert (ran.code, ran.err) == (0, "")
    (line,) = ran.lines
    assert line.startswith("1 partition, 1 segment, ")
    assert line.endswith(": no damage")


def test_directories_of_kafka_have_no_damage(run: Run, tmp_path: Path) -> None:
    current, old = (golden.log_dir(golden.unpack(tmp_path, version)) for version in (CURRENT, OLD))
    assert run("verify", current).code == 0
    ran = run("verify", old, current)
    assert ran.code == 0
    assert all(line.startswith("note: ") for line in ran.lines[:-1])
    assert ran.lines[-1].startswith("44 partitions, ")
    assert run("verify", "--strict", old).code == 1


def test_reports_damage_and_exits_with_1(run: Run, logs: Path) -> None:
    position, offset = damage_batch(logs, 3)
    ran = run("verify", logs)
    assert ran.code == 1
    assert ran.lines[0].startswith(f"damage: {logs}/t-0/{LOG}, position {position}, offset {offset}: stored CRC ")
    assert ran.lines[-1].endswith(": DAMAGE in 1 place")
    document = json.loads(run("verify", "--json", logs / "t-0").text)
    assert {**document["findings"][0], "reason": ""} == {
        "severity": "damage",
        "file": str(logs / "t-0" / LOG),
        "position": position,
        "offset": offset,
        "reason": "",
    }
    assert document["partitions"] == 1
    assert document["records"] > 0


def test_single_files_and_threads(run: Run, logs: Path) -> None:
    files = [path for path in (logs / "t-0").iterdir() if path.is_file()]
    assert run("verify", *files).code == 0
    assert run("verify", "--workers", "1", logs).code == 0
    assert run("verify", "--workers", "0", logs).code == 2
    damage_batch(logs, 1)
    assert [run("verify", path).code for path in files] == [int(path.name == LOG) for path in files]


def test_refuses_paths_that_cannot_be_verified(run: Run, tmp_path: Path) -> None:
    for path, reason in (
        (tmp_path / "nothing", "No such file or directory"),
        (tmp_path, "is neither a log directory nor a partition's"),
        (Path(__file__), "not a file of Kafka's"),
    ):
        ran = run("verify", path)
        assert ran.code == 2
        assert ran.err == f"seglog: {path}: {reason}\n" or reason in ran.err
        assert ran.out == b""
    assert run("verify").code == 2


def test_verifies_a_read_only_directory_without_changes(logs: Path) -> None:
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in logs.rglob("*")}
    for path in logs.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    assert seglog_command("verify", logs).code == 0
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in logs.rglob("*")} == before


# repair


def test_prints_the_plan_and_changes_nothing_without_a_terminal(run: Run, logs: Path) -> None:
    index = logs / "t-0" / f"{0:020d}.index"
    sound = bytes_of(logs / "t-0")
    index.write_bytes(b"\x00\x01")
    expected = f"{index}: rebuild it and the time index (size 2 is not a multiple of 8)"
    ran = run("repair", "--dry-run", logs)
    assert (ran.code, ran.lines) == (1, [expected])
    ran = seglog_command("repair", logs)
    why = "stdin is not a terminal; --yes repairs without asking"
    assert (ran.code, ran.lines, ran.err) == (2, [expected], f"seglog: nothing was changed: {why}\n")
    assert index.read_bytes() == b"\x00\x01"
    ran = run("repair", "--yes", logs)
    assert ran.code == 0
    assert ran.lines[0] == expected
    assert ran.lines[1].startswith(f"the originals are in {logs}/t-0/{OWN_DIRECTORY}/backup-")
    assert ran.lines[-1].endswith(": no damage")
    assert bytes_of(logs / "t-0") == sound
    assert run("repair", logs).lines == ["nothing to repair"]


def test_a_refusal_and_salvage(run: Run, logs: Path) -> None:
    position, offset = damage_batch(logs, 2)
    ran = run("repair", "--yes", logs / "t-0")
    assert ran.code == 1
    assert ran.lines[0].startswith(f"refused: {logs}/t-0/{LOG}: would remove ")
    assert ran.lines[1:] == ["nothing can be repaired"]
    document = json.loads(run("repair", "--json", "--yes", "--salvage", logs).text)
    assert document["refused"] == []
    assert f" at position {position} " in document["steps"][0]["what"]
    assert f"{offset}" in document["steps"][0]["loses"]
    assert len(document["backups"]) == 1
    assert [finding["severity"] for finding in document["verified"]["findings"]] == ["note"]
    assert not look(logs).is_damaged


def test_json_does_not_ask_and_a_directory_in_use_is_refused(run: Run, logs: Path) -> None:
    assert run("repair", "--json", logs).code == 2
    with open_dir(logs):
        ran = run("repair", "--yes", logs)
        assert ran.code == 2
        assert "has this directory open" in ran.err
        assert run("repair", "--dry-run", logs).code == 0
    assert run("repair", "--yes", logs / "t-0" / LOG).code == 2


@pytest.mark.parametrize(("answer", "code"), [(b"n\n", 2), (b"y\n", 0)])
def test_asks_on_a_terminal(logs: Path, answer: bytes, code: int) -> None:
    index = logs / "t-0" / f"{0:020d}.timeindex"
    index.unlink()
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "seglog", "repair", str(logs)],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "src")},
    )
    os.close(theirs)
    os.write(ours, answer)
    out, _ = process.communicate(timeout=60)
    os.close(ours)
    assert b"Do this?" in out
    assert process.returncode == code
    assert index.exists() == (code == 0)


def test_shows_a_progress_bar_only_on_a_terminal_and_late(logs: Path) -> None:
    ours, theirs = pty.openpty()
    process = start_seglog("verify", logs, stdout=theirs)
    os.close(theirs)
    printed = b""
    while True:
        try:
            part = os.read(ours, 1000)
        except OSError:
            break
        if not part:
            break
        printed += part
    os.close(ours)
    assert process.wait(60) == 0
    assert b"checking" not in printed
    assert b"no damage" in printed
    shutil.rmtree(logs)
