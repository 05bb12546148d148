"""The disk as the API tells it: the same facts as the commands', within bounds, also where files are damaged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from seglog.core.clock import SystemClock
from seglog.core.types import TopicPartition
from seglog.records.record import NewRecord
from seglog.storage.directory.log_dir import LogDir
from tests.cli.run import Run, run_here
from tests.console.asking import Asked, start
from tests.console.scene import DAY

pytestmark = pytest.mark.xdist_group("console")
_FLIGHTS = {"topic": "flights", "partition": 0}


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    return run_here(capfdbinary)


def test_partitions_are_listed_in_pages(asked: Asked) -> None:
    found = asked.ask("partitions")
    names = [(one["topic"], one["partition"]) for one in found["partitions"]]
    assert names == [("flights", 0), ("flights", 1), ("hostile", 0), ("prices", 0)]
    assert [one["root"] for one in found["partitions"][0]["replicas"]] == [0, 1]
    page = asked.ask("partitions", filter="FLIGHTS-", first=1, count=1)
    assert (page["total"], [one["partition"] for one in page["partitions"]]) == (2, [1])


def test_the_picture_has_the_marks_of_the_log(asked: Asked, directories: Path, tmp_path: Path) -> None:
    found = asked.ask("partition", **_FLIGHTS)
    copy = tmp_path / "copy"
    shutil.copytree(directories / "broker-1", copy)
    with LogDir.open(copy) as directory:
        log = directory.logs[TopicPartition("flights", 0)]
        assert (found["start"], found["end"]) == (log.log_start_offset, log.log_end_offset)
        assert found["highWatermark"] == log.log_end_offset
        assert found["lastStableOffset"] == log.last_stable_offset < log.log_end_offset
        assert [(one["epoch"], one["startOffset"]) for one in found["epochs"]] == [
            tuple(one) for one in log.epochs.entries
        ]
        assert [one["baseOffset"] for one in found["segments"]] == [one.base_offset for one in log.segments]
        assert [one["size"] for one in found["segments"]] == [one.size for one in log.segments]
        assert [one["maxTimestamp"] for one in found["segments"]] == [one.max_timestamp for one in log.segments]
        assert [one["indexEntries"] for one in found["segments"]] == [one.offset_index.count for one in log.segments]
        entries = [txn for one in log.segments for txn in one.txn_index.entries]
        assert [tuple(one.values()) for one in found["aborted"]] == [tuple(one) for one in entries]
    assert found["aborted"]


def test_replicas_stand_beneath_with_their_lag(asked: Asked) -> None:
    found = asked.ask("partition", **_FLIGHTS)
    first, second = found["replicas"]
    assert (first["broker"], first["lag"], second["broker"]) == (1, 0, 2)
    assert second["lag"] == first["end"] - second["end"] > 0
    other = asked.ask("partition", **_FLIGHTS, root=1)
    assert (other["root"], other["end"], len(other["segments"])) == (1, second["end"], len(second["segments"]))


def test_retention_names_what_goes_and_when(asked: Asked) -> None:
    found = asked.ask("partition", **_FLIGHTS)
    retention = found["retention"]
    assert (retention["source"], retention["policy"]) == ("seglog.topics", ["delete"])
    assert (retention["retentionMs"], retention["retentionBytes"]) == (7 * DAY, 1_000_000)
    assert [one["goes"] for one in retention["segments"]] == [None] * len(found["segments"])
    first, segment = retention["segments"][0], found["segments"][0]
    assert first["at"] == segment["maxTimestamp"] + 7 * DAY + 1
    assert first["afterBytes"] == 1_000_000 + segment["size"] - found["size"]
    assert asked.ask("partition", topic="prices", partition=0)["retention"]["policy"] == ["compact"]


def test_expired_segments_go_now(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with LogDir.open(path) as directory:
        directory.create_topic("old", config={"internal.segment.bytes": "200", "retention.ms": "-1"})
        log = directory.logs[TopicPartition("old", 0)]
        for number in range(3):
            log.append_records([NewRecord(b"x" * 100, timestamp=1000 + number)])
        directory.set_config("old", {"internal.segment.bytes": "200", "retention.ms": "1000"})
    with start(tmp_path, str(path)) as running:
        found = running.asked.ask("partition", topic="old", partition=0)
    reasons = [one["goes"] for one in found["retention"]["segments"]]
    assert set(reasons) == {"its newest record is older than retention.ms"}


@pytest.mark.parametrize("topic", ["flights", "prices"])
def test_look_ups_are_those_of_seglog_find(asked: Asked, directories: Path, run: Run, topic: str) -> None:
    partition = directories / "broker-1" / f"{topic}-0"
    bounds = asked.ask("partition", topic=topic, partition=0)
    for offset in range(bounds["start"], bounds["end"], max(bounds["end"] // 12, 1)):
        found = asked.ask("lookup", topic=topic, partition=0, offset=offset)
        assert found == json.loads(run("find", partition, "--offset", str(offset), "--json").text)
        moment = str(found["timestamp"])
        by_time = asked.ask("lookup", topic=topic, partition=0, time=moment)
        assert by_time == json.loads(run("find", partition, "--timestamp", moment, "--json").text)


def test_a_look_up_names_each_slot_and_batch_that_it_read(asked: Asked) -> None:
    index = asked.ask("index", **_FLIGHTS, base=0)
    batches = asked.ask("batches", **_FLIGHTS, base=0, count=500)["batches"]
    for offset in range(0, batches[-1]["lastOffset"], 37):
        steps = {one["step"]: one for one in asked.ask("lookup", **_FLIGHTS, offset=offset)["steps"]}
        low, high = -1, index["entries"]
        for slot in steps["index"]["visits"]:
            assert low < slot < high
            if index["offsets"][slot] <= offset:
                low = slot
            else:
                high = slot
        assert (low, low + 1) == (-1 if steps["index"]["slot"] is None else steps["index"]["slot"], high)
        positions = [one["position"] for one in batches]
        begin = positions.index(steps["index"]["position"])
        assert steps["scan"]["visits"] == positions[begin : positions.index(steps["scan"]["position"]) + 1]


def test_batches_are_those_of_seglog_dump(asked: Asked, directories: Path, run: Run) -> None:
    for segment in asked.ask("partition", **_FLIGHTS)["segments"]:
        log = directories / "broker-1" / "flights-0" / segment["file"]
        found: list[dict[str, Any]] = []
        position: int | None = 0
        while position is not None:
            page = asked.ask("batches", **_FLIGHTS, base=segment["baseOffset"], position=position, count=7)
            found += page["batches"]
            position = page["next"]
        dumped = run("dump", log, "--json").objects
        ours = ("isAborted", "tombstones", "hole")
        assert [{"file": str(log), **{k: v for k, v in one.items() if k not in ours}} for one in found] == dumped
        at = dumped[len(dumped) // 2]["lastOffset"]
        assert (
            asked.ask("batches", **_FLIGHTS, base=segment["baseOffset"], offset=at, count=1)["batches"][0]["lastOffset"]
            == at
        )


def test_aborted_batches_tombstones_and_holes_are_marked(asked: Asked) -> None:
    picture = asked.ask("partition", **_FLIGHTS)
    for segment in picture["segments"]:
        for one in asked.ask("batches", **_FLIGHTS, base=segment["baseOffset"], count=500)["batches"]:
            is_aborted = (
                one["isTransactional"]
                and not one["isControl"]
                and any(
                    txn["producerId"] == one["producerId"]
                    and txn["firstOffset"] <= one["baseOffset"] <= txn["lastOffset"]
                    for txn in picture["aborted"]
                )
            )
            assert one["isAborted"] == is_aborted
    prices = asked.ask("partition", topic="prices", partition=0)
    rows = [
        one
        for segment in prices["segments"]
        for one in asked.ask("batches", topic="prices", partition=0, base=segment["baseOffset"])["batches"]
    ]
    assert sum(one["tombstones"] for one in rows) > 0
    assert any(one["count"] < one["lastOffset"] - one["baseOffset"] + 1 for one in rows)


def test_an_index_is_told_whole_thinned_or_around_a_slot(asked: Asked, directories: Path, run: Run) -> None:
    file = directories / "broker-1" / "flights-0" / "00000000000000000000.index"
    dumped = [(one["offset"], one["position"]) for one in run("dump", file, "--json").objects]
    whole = asked.ask("index", **_FLIGHTS, base=0)
    assert list(zip(whole["offsets"], whole["positions"], strict=True)) == dumped
    thin = asked.ask("index", **_FLIGHTS, base=0, count=4)
    assert 1 < len(thin["slots"]) <= 4
    assert thin["entries"] == len(dumped)
    for around in (0, 10, len(dumped) - 1):
        part = asked.ask("index", **_FLIGHTS, base=0, count=6, around=around)
        assert around in part["slots"]
        assert part["offsets"] == [dumped[slot][0] for slot in part["slots"]]
        assert all(one in whole["timestamps"] for one in part["timestamps"])
    first = asked.ask("index", **_FLIGHTS, base=0, count=6, around=10)
    assert first["offsets"][0] <= first["timeOffsets"][0]
    assert first["timeOffsets"][-1] <= first["offsets"][-1]


def test_ten_thousand_partitions_are_listed_by_pages(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.mkdir()
    (path / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=x\n")
    for number in range(10_000):
        (path / f"many-{number}").mkdir()
    with start(tmp_path, str(path)) as running:
        page = running.asked.ask("partitions", first=9_950, count=100)
        assert (page["total"], len(page["partitions"])) == (10_000, 50)
        assert running.asked.ask("partitions", filter="-9999")["total"] == 1
        empty = running.asked.ask("partition", topic="many", partition=7)
        assert (empty["segments"], empty["end"]) == ([], 0)


def test_damage_is_told_and_the_rest_is_shown(directories: Path, tmp_path: Path) -> None:
    path = tmp_path / "broker-1"
    shutil.copytree(directories / "broker-1", path)
    log = path / "flights-0" / "00000000000000000000.log"
    data = bytearray(log.read_bytes())
    with start(tmp_path, str(path)) as running:
        asked = running.asked
        rows = asked.ask("batches", **_FLIGHTS, base=0)["batches"]
        data[rows[3]["position"] + 70] ^= 0xFF
        data[rows[9]["position"] + 16] = 77
        log.write_bytes(data)
        found = asked.ask("batches", **_FLIGHTS, base=0)
        assert [one["isValid"] for one in found["batches"][:5]] == [True, True, True, False, True]
        assert found["damage"] is not None
        assert str(rows[9]["position"]) in found["damage"]
        wrong = asked.answer("lookup", **_FLIGHTS, offset=rows[3]["baseOffset"])
        assert (wrong.status, "CRC" in wrong.document["error"]) == (422, True)
        read = asked.ask("records", **_FLIGHTS, offset=0, count=500)
        assert read["records"][-1]["offset"] == rows[2]["lastOffset"]
        assert "CRC" in read["damage"]
        verified = asked.ask("verify", **_FLIGHTS)
        assert [one["severity"] for one in verified["findings"]].count("damage") >= 2
        assert asked.ask("partition", **_FLIGHTS)["end"] > 0


def test_a_partition_alone_and_directories_of_a_cluster_can_be_named(directories: Path, tmp_path: Path) -> None:
    with start(tmp_path, str(directories / "broker-1" / "flights-1")) as running:
        found = running.asked.ask("partitions")
    assert [(one["topic"], one["partition"]) for one in found["partitions"]] == [("flights", 1)]


def test_nothing_is_written(asked: Asked, directories: Path) -> None:
    before = {file: (file.stat().st_mtime_ns, file.stat().st_size) for file in directories.rglob("*")}
    now = SystemClock().now_ms()
    asked.ask("partition", **_FLIGHTS)
    asked.ask("verify", **_FLIGHTS)
    asked.ask("records", **_FLIGHTS, offset=0)
    assert asked.ask("about")["now"] >= now
    assert before == {file: (file.stat().st_mtime_ns, file.stat().st_size) for file in directories.rglob("*")}
