"""`seglog undelete`: topics that Kafka or seglog deleted come back, whatever the moment of a crash.

`tests/interop/test_undelete.py` starts Kafka on what it wrote.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from seglog.core.clock import SystemClock
from seglog.core.fs import Fs, OsFs
from seglog.core.overlay_fs import OverlayFs
from seglog.records.record import NewRecord
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.formats.checkpoints import read_meta_properties, write_meta_properties
from seglog.storage.offline.kraft_metadata import REMOVE_TOPIC_RECORD, append_records, read_kraft_metadata
from seglog.storage.offline.undelete import carry_out_undelete, plan_undelete
from tests import golden
from tests.cli.run import Run
from tests.kafka.jars import CURRENT, OLD
from tests.kit.crash_fs import CrashFs, SimulatedCrash

ASIDE = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Kafka 4.4's directory."""
    return golden.log_dir(golden.unpack(tmp_path, CURRENT))


def _delete(data: Path, topic: str, suffix: str = "-delete") -> None:
    """As Kafka deletes a topic: a record in its metadata, and other names of its directories."""
    kraft = read_kraft_metadata(OsFs(), str(data))
    assert kraft is not None
    record = (REMOVE_TOPIC_RECORD, 0, {"topicId": kraft.topics[topic].bytes})
    append_records(OsFs(), kraft, [record], 1_800_000_000_000)
    for number in range(len(kraft.partitions[kraft.topics[topic]])):
        (data / f"{topic}-{number}").rename(data / f"{topic}-{number}.{ASIDE}{suffix}")


def _logs(path: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in path.glob("*.log")}


def _tree(path: Path) -> dict[str, bytes]:
    return {str(one.relative_to(path)): one.read_bytes() for one in path.rglob("*") if one.is_file()}


def _done(run: Run, data: Path, *arguments: str) -> dict[str, Any]:
    ran = run("undelete", data, "--yes", "--json", *arguments)
    assert ran.err == ""
    found: dict[str, Any] = json.loads(ran.text)
    return found


@pytest.mark.parametrize("suffix", ["-delete", "-stray"])
def test_a_topic_of_kafka_comes_back_with_id_configuration_and_records(data: Path, run: Run, suffix: str) -> None:
    before = _logs(data / "compacted-0")
    was = read_kraft_metadata(OsFs(), str(data))
    assert was is not None
    _delete(data, "compacted", suffix)
    untouched = _tree(data)
    planned = run("undelete", data, "--dry-run")
    assert planned.code == 0
    assert f"becomes {data / 'compacted-0'}" in planned.text
    assert "  cleanup.policy=compact" in planned.lines
    assert _tree(data) == untouched
    (topic,) = _done(run, data)["topics"]
    assert topic["topic"] == "compacted"
    assert topic["config"] == was.configs["compacted"]
    now = read_kraft_metadata(OsFs(), str(data))
    assert now is not None
    assert now.topics["compacted"] == was.topics["compacted"]
    assert now.configs["compacted"] == was.configs["compacted"]
    (_, partition) = now.partitions[now.topics["compacted"]][0]
    assert (partition["replicas"], partition["leader"]) == ([1], 1)
    assert partition["leaderEpoch"] > was.partitions[was.topics["compacted"]][0][1]["leaderEpoch"]
    assert _logs(data / "compacted-0") == before
    assert run("verify", data / "compacted-0").code == 0
    again = run("undelete", data, "--dry-run")
    assert (again.code, again.text) == (0, "no directory is deleted or stray\n")


def test_all_partitions_of_a_topic_come_back_together(data: Path, run: Run) -> None:
    _delete(data, "a.b-c_d")
    (topic,) = _done(run, data)["topics"]
    assert [one["partition"] for one in topic["partitions"]] == [0, 1]


def test_a_topic_of_seglog_comes_back_and_nothing_of_it_is_deleted_by_age(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "logs"
    with LogDir.open(path) as opened:
        opened.create_topic("web", 2, {"retention.ms": 5000})
        opened.log("web").append_records([NewRecord(b"tea", timestamp=1)])
        topic_id = opened.topic_id("web")
        opened.delete_topic("web")
    assert not (path / "web-0").exists()
    (topic,) = _done(run, path)["topics"]
    assert topic["config"] == {"retention.bytes": "-1", "retention.ms": "-1"}
    assert any("configuration is not known any more" in loss for loss in topic["loses"])
    with LogDir.open(path) as opened:
        assert opened.topic_id("web") == topic_id
        assert opened.partitions_of("web") == opened.partitions()
        assert [record.value for record in opened.log("web").records()] == [b"tea"]
        assert opened.run_retention() == {}


def test_each_reason_for_a_refusal_names_the_directory(data: Path, run: Run) -> None:
    def refused() -> str:
        ran = run("undelete", data, "--dry-run", "--json")
        assert ran.code == 1
        (reason,) = json.loads(ran.text)["refused"]
        return str(reason)

    _delete(data, "rolled")
    aside = data / f"rolled-0.{ASIDE}-delete"
    (data / "rolled-0").mkdir()
    assert refused() == f"{aside}: {data / 'rolled-0'} is there already"
    (data / "rolled-0").rmdir()
    metadata = (aside / "partition.metadata").read_bytes()
    (aside / "partition.metadata").unlink()
    assert refused() == f"{aside}: it has no partition.metadata, so its topic is not known"
    (aside / "partition.metadata").write_bytes(metadata[:-3])
    assert f"{aside / 'partition.metadata'}" in refused()
    (aside / "partition.metadata").write_bytes(metadata)
    for log in aside.glob("*.log"):
        log.unlink()
    assert refused() == f"{aside}: no segment is left"


def test_a_part_of_a_topic_does_not_come_back_alone(data: Path, run: Run) -> None:
    _delete(data, "a.b-c_d")
    first = data / f"a.b-c_d-0.{ASIDE}-delete"
    first.rename(data.parent / "elsewhere")
    ran = run("undelete", data, "--dry-run")
    assert ran.code == 1
    assert "only partitions 1 are here" in ran.text


def test_a_name_that_is_used_again_is_not_overwritten(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "logs"
    with LogDir.open(path) as opened:
        opened.create_topic("web", 1, {})
        opened.delete_topic("web")
        opened.create_topic("web", 1, {})
    ran = run("undelete", path, "--yes")
    assert ran.code == 1
    assert "a topic web was created again, with id" in ran.text


def test_directories_without_their_metadata_are_refused(data: Path, run: Run, tmp_path: Path) -> None:
    meta = read_meta_properties(OsFs(), str(data))
    assert meta is not None
    write_meta_properties(OsFs(), str(data), meta._replace(node_id=5), 0)
    ran = run("undelete", data, "--dry-run")
    assert ran.code == 2
    assert "the controllers are 1, and this is node 5" in ran.err
    old = golden.log_dir(golden.unpack(tmp_path / "old", OLD))
    ran = run("undelete", old, "--dry-run")
    assert ran.code == 2
    assert "has neither __cluster_metadata-0 nor seglog.topics" in ran.err
    for arguments, reason in (
        ((tmp_path / "none",), "none is not a directory"),
        ((tmp_path,), "is not a log directory: it has no meta.properties"),
        ((data, "--json"), "--json cannot ask for confirmation"),
    ):
        ran = run("undelete", *arguments)
        assert (ran.code, ran.err.count("\n")) == (2, 1)
        assert reason in ran.err


def test_nothing_is_done_without_consent_or_while_a_broker_runs(data: Path, run: Run) -> None:
    _delete(data, "rolled")
    before = {name for name in _tree(data) if name != ".lock"}
    ran = run("undelete", data)
    assert (ran.code, ran.err) == (
        2,
        "seglog: nothing was changed: stdin is not a terminal; --yes does it without asking\n",
    )
    lock = OsFs().lock(str(data / ".lock"))
    ran = run("undelete", data, "--yes")
    lock.release()
    assert ran.code == 2
    assert "is locked" in ran.err
    assert {name for name in _tree(data) if name != ".lock"} == before


def test_a_crash_at_any_change_leaves_a_topic_that_the_next_run_brings_back(data: Path) -> None:
    logs = _logs(data / "rolled-0")
    _delete(data, "rolled")
    path = str(data)
    counted = CrashFs(OverlayFs(OsFs(), SystemClock()))
    carry_out_undelete(counted, SystemClock(), plan_undelete(counted, path))
    assert counted.changes > 3
    for crash_at in range(1, counted.changes + 1):
        disk = OverlayFs(OsFs(), SystemClock())
        crashing = CrashFs(disk, crash_at=crash_at, torn=0.5)
        with pytest.raises(SimulatedCrash):
            carry_out_undelete(crashing, SystemClock(), plan_undelete(crashing, path))
        carry_out_undelete(disk, SystemClock(), plan_undelete(disk, path))
        _check_back(disk, path, logs)


def _check_back(fs: Fs, path: str, logs: dict[str, bytes]) -> None:
    kraft = read_kraft_metadata(fs, path)
    assert kraft is not None
    assert list(kraft.partitions[kraft.topics["rolled"]]) == [0]
    assert {name: fs.read(f"{path}/rolled-0/{name}") for name in logs} == logs
    assert plan_undelete(fs, path).topics == ()
