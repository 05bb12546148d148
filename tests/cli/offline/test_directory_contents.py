"""The contents of a directory decide its kind, and healthy directories are not reported as damaged."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from seglog.core.errors import InvalidLogDirError
from seglog.core.fs import OsFs
from seglog.storage.formats.paths import is_partition
from seglog.storage.offline.repair import plan_repair
from seglog.storage.offline.verify import verify
from tests.cli.run import Run
from tests.storage.offline.verify.verified import INDEX, LOG, PARTITION, TIMES, damage, flip, look, make_dir, open_dir


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return tmp_path / "logs"


def damaged_log_dir(path: Path) -> Path:
    partition = make_dir(path)
    log = partition / LOG
    log.write_bytes(flip(log.read_bytes(), 3000, 1))
    return path


def test_searches_a_log_directory_named_like_a_partition(tmp_path: Path, run: Run) -> None:
    logs = damaged_log_dir(tmp_path / "broker-1")
    assert look(logs).is_damaged
    assert run("verify", logs).code == 1
    assert "t-0" in run("ls", logs).text
    assert run("repair", "--dry-run", logs).code == 1
    assert [Path(one.files.path).name for one in plan_repair(str(logs)).partitions] == [PARTITION]


def test_recognises_a_log_directory_by_its_partitions(tmp_path: Path) -> None:
    logs = damaged_log_dir(tmp_path / "broker-1")
    for file in logs.iterdir():
        if file.is_file():
            file.unlink()
    assert damage(look(logs))


@pytest.mark.parametrize("command", ["verify", "ls", "repair"])
def test_refuses_a_directory_of_log_directories_and_names_them(tmp_path: Path, run: Run, command: str) -> None:
    damaged_log_dir(tmp_path / "cluster" / "broker-1")
    make_dir(tmp_path / "cluster" / "broker-2")
    ran = run(command, tmp_path / "cluster")
    assert ran.code == 2
    assert "holds log directories; name one of broker-1, broker-2" in ran.err
    with pytest.raises(InvalidLogDirError, match="broker-1, broker-2"):
        verify([str(tmp_path / "cluster")])


def test_recognises_an_empty_directory_by_its_name(tmp_path: Path) -> None:
    for name, expected in (("web-0", True), ("web", False)):
        (tmp_path / name).mkdir()
        assert is_partition(OsFs(), str(tmp_path / name)) is expected


@pytest.mark.parametrize("names", [(INDEX,), (TIMES,), (INDEX, TIMES)])
@pytest.mark.parametrize("clean", [True, False])
def test_accepts_an_empty_active_segment_without_index(logs: Path, names: tuple[str, ...], clean: bool) -> None:
    with open_dir(logs) as directory:
        directory.create_topic("t")
    for name in names:
        (logs / PARTITION / name).unlink()
    if not clean:
        (logs / ".kafka_cleanshutdown").unlink()
    assert look(logs).findings == []
    assert look(logs / PARTITION).findings == []
    open_dir(logs).close()
    assert look(logs).findings == []


def test_reports_a_missing_index_of_a_segment_with_records(logs: Path) -> None:
    partition = make_dir(logs)
    (partition / INDEX).unlink()
    assert [Path(one.file).name for one in damage(look(logs))] == [INDEX]


def test_accepts_files_of_seglog(logs: Path) -> None:
    make_dir(logs)
    for name in ("seglog.watermarks", "seglog.store", "seglog.metadata"):
        (logs / name).write_bytes(b"")
    assert look(logs).findings == []


@pytest.mark.parametrize("name", [LOG, INDEX, "leader-epoch-checkpoint", "partition.metadata", f"{9:020d}.log", "pipe"])
def test_reports_a_fifo_without_blocking(logs: Path, run: Run, name: str) -> None:
    partition = make_dir(logs)
    (partition / name).unlink(missing_ok=True)
    os.mkfifo(partition / name)
    for command in ("verify", "ls"):
        ran = run(command, logs)
        assert name in ("pipe", "leader-epoch-checkpoint", INDEX) or ran.code, command
    found = [finding for finding in look(logs).findings if Path(finding.file).name == name]
    assert any("not a regular file" in finding.reason for finding in found)
    if name != "pipe":
        assert damage(look(logs))


@pytest.mark.parametrize("name", ["recovery-point-offset-checkpoint", "meta.properties", "seglog.topics"])
def test_reports_special_files_beside_partitions(logs: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make_dir(logs)
    (logs / name).unlink()
    monkeypatch.chdir(logs)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as special:
        special.bind(name)
        assert any(Path(finding.file).name == name for finding in look(logs).findings)
        (logs / name).unlink()
    os.mkfifo(logs / name)
    assert any(Path(finding.file).name == name for finding in damage(look(logs)))
