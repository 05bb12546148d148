"""`seglog find`: every offset and many timestamps of real partitions, and its explanations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from seglog.cli.options import parse_time
from tests import golden
from tests.cli.run import Run
from tests.kafka.jars import CURRENT, OLD, KafkaVersion


@pytest.fixture(scope="module", params=[CURRENT, OLD])
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    version: KafkaVersion = request.param
    return golden.unpack(tmp_path_factory.mktemp("golden"), version)


def _found(run: Run, partition: Path, *arguments: str) -> dict[str, object]:
    ran = run("find", partition, *arguments, "--json")
    assert ran.code == 0, ran.err
    document: dict[str, object] = json.loads(ran.text)
    return document


def test_records_are_found_by_offset(root: Path, run: Run) -> None:
    """The first, the last and some other records of every partition that a consumer could read."""
    looked = 0
    for name in golden.partitions(root):
        records = golden.expected_records(root, name)
        for record in records[:: max(len(records) // 4, 1)] + records[-1:]:
            found = _found(run, golden.log_dir(root) / name, "--offset", str(record.offset))
            assert (found["offset"], found["timestamp"]) == (record.offset, record.timestamp), name
            looked += 1
    assert looked > 50


def test_records_are_found_by_timestamp(root: Path, run: Run) -> None:
    """The first record in offset order at or after the time, as Kafka's ListOffsets returns it."""
    looked = 0
    for name in golden.partitions(root):
        records = [record for record in golden.expected_records(root, name) if record.timestamp >= 0]
        has_control = "txn" in name or name.startswith("__")
        for record in [] if has_control else records[:: max(len(records) // 4, 1)] + records[-1:]:
            first = next(other for other in records if other.timestamp >= record.timestamp)
            found = _found(run, golden.log_dir(root) / name, "--timestamp", str(record.timestamp))
            assert (found["offset"], found["timestamp"]) == (first.offset, first.timestamp), name
            looked += 1
    assert looked > 30


def test_explain_prints_steps_from_segment_to_record(root: Path, run: Run) -> None:
    name = "rolled-0" if (golden.log_dir(root) / "rolled-0").exists() else "v2-rolled-0"
    partition = golden.log_dir(root) / name
    steps = _found(run, partition, "--offset", "100")["steps"]
    assert isinstance(steps, list)
    assert [step["step"] for step in steps] == ["segment", "index", "scan", "batch", "record"]
    assert steps[-1]["offset"] == 100
    assert steps[2]["position"] == steps[3]["position"]
    by_time = _found(run, partition, "--timestamp", "1700000005000")["steps"]
    assert isinstance(by_time, list)
    assert [step["step"] for step in by_time][-5:] == ["timeindex", "index", "scan", "batch", "record"]
    text = run("find", partition, "--offset", "100", "--explain").text
    assert "\n5. record: " in text
    assert run("find", partition, "--offset", "100").text == text[text.index("offset 100  timestamp") :]


def test_reads_the_segment_from_its_start_without_indexes(root: Path, run: Run, tmp_path: Path) -> None:
    name = golden.partitions(root)[-1]
    source = golden.log_dir(root) / name
    copy = tmp_path / name
    copy.mkdir()
    for log in source.glob("*.log"):
        (copy / log.name).write_bytes(log.read_bytes())
    for record in golden.expected_records(root, name)[::5]:
        for arguments in (("--offset", str(record.offset)), ("--timestamp", str(record.timestamp))):
            bare, indexed = _found(run, copy, *arguments), _found(run, source, *arguments)
            assert bare["offset"] == indexed["offset"]


def test_a_time_after_the_last_record_succeeds(root: Path, run: Run) -> None:
    partition = golden.log_dir(root) / golden.partitions(root)[-1]
    ran = run("find", partition, "--timestamp", "2100-01-01")
    assert (ran.code, ran.text) == (0, "no record is at or after that time\n")
    assert _found(run, partition, "--timestamp", "2100-01-01T00:00:00+01:00")["found"] is False


def test_an_offset_out_of_range_fails(root: Path, run: Run) -> None:
    partition = golden.log_dir(root) / golden.partitions(root)[-1]
    ran = run("find", partition, "--offset", "100000")
    assert ran.code == 2
    assert ran.err.startswith("seglog: offset 100000 is not in the log: its end is ")
    deleted = golden.log_dir(root) / "deleted-part-0"
    if deleted.exists():
        assert run("find", deleted, "--offset", "3").err == "seglog: offset 3 is not in the log: it starts at 7\n"
        assert _found(run, deleted, "--offset", "7")["offset"] == 7


def test_reports_a_wrong_crc(root: Path, run: Run, tmp_path: Path) -> None:
    name = "codec-none-0" if (golden.log_dir(root) / "codec-none-0").exists() else "v2-none-0"
    copy = tmp_path / name
    copy.mkdir()
    data = bytearray((golden.log_dir(root) / name / "00000000000000000000.log").read_bytes())
    data[70] ^= 1
    log = copy / "00000000000000000000.log"
    log.write_bytes(data)
    ran = run("find", copy, "--offset", "0")
    assert ran.code == 1
    assert ran.err.startswith(f"seglog: {log}, ")
    assert "stored CRC" in ran.err


def test_times_on_the_command_line() -> None:
    assert parse_time("-5") == -5
    assert parse_time("1969-12-31T23:59:59.500Z") == -500
    assert parse_time("2013-01-01T00:00:00-05:00") == 1357016400000


def test_refuses_a_wrong_time_and_both_options(root: Path, run: Run) -> None:
    partition = golden.log_dir(root) / golden.partitions(root)[0]
    assert run("find", partition, "--timestamp", "yesterday").code == 2
    assert run("find", partition, "--timestamp", "1", "--offset", "1").err == (
        "seglog: find needs either --offset or --timestamp\n"
    )
