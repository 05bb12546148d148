"""`seglog dump` against what DumpLogSegments 4.4.0 printed for directories that Kafka 4.4.0 and 2.8.2 wrote."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from tests import golden
from tests.cli.run import Run
from tests.kafka.jars import CURRENT, OLD, KafkaVersion
from tests.kafka.records import ConsumedRecord

_DECODERS: Final[Mapping[str, str]] = {
    "__consumer_offsets-0": "--offsets-decoder",
    "__transaction_state-0": "--transaction-log-decoder",
    "__cluster_metadata-0": "--cluster-metadata-decoder",
}
_TIME_TYPES: Final = {-1: "NoTimestampType", 0: "CreateTime", 1: "LogAppendTime"}


@pytest.fixture(scope="module", params=[CURRENT, OLD])
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    version: KafkaVersion = request.param
    return golden.unpack(tmp_path_factory.mktemp("golden"), version)


def test_every_file_is_printed_as_kafka_prints_it(root: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(golden.log_dir(root))
    compared = 0
    for expected in sorted((root / "expected").glob("*/*.txt")):
        partition, file = expected.parent.name, expected.name.removesuffix(".txt")
        deep = file.endswith(".deep")
        arguments = ["dump", "--files", f"{partition}/{file.removesuffix('.deep')}"]
        if deep:
            arguments += ["--deep-iteration", "--print-data-log"]
            arguments += [_DECODERS[partition]] if partition in _DECODERS else []
        ran = run(*arguments)
        assert ran.out == expected.read_bytes(), (partition, file)
        assert ran.code == 0, (partition, file, ran.err)
        compared += 1
    assert compared > 100


def test_files_in_one_run_follow_each_other(root: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(golden.log_dir(root))
    partition = golden.partitions(root)[0]
    files = sorted(path.name.removesuffix(".txt") for path in (root / "expected" / partition).glob("*x.txt"))
    assert files
    ran = run("dump", "--files", ",".join(f"{partition}/{file}" for file in files))
    assert ran.text == "".join(golden.dump_text(root, partition, file) for file in files)
    assert run("dump", *(f"{partition}/{file}" for file in files)).out == ran.out


def test_records_match_those_of_the_java_consumer(root: Path, run: Run) -> None:
    for partition in golden.partitions(root):
        ran = run("dump", "--records", "--json", golden.log_dir(root) / partition)
        assert ran.code == 0, ran.err
        start = _log_start(root, partition)
        shown = [_facts(record) for record in ran.objects if not record["isControl"] and record["offset"] >= start]
        assert shown == [_consumed_facts(record) for record in golden.expected_records(root, partition)], partition


def test_read_committed_skips_the_same_records_as_the_java_consumer(root: Path, run: Run) -> None:
    found = 0
    for partition in golden.partitions(root):
        if not (root / "expected" / partition / "read_committed.jsonl").exists():
            continue
        found += 1
        ran = run("dump", "--records", "--isolation-level", "read_committed", golden.log_dir(root) / partition)
        expected = golden.expected_records(root, partition, isolation="read_committed")
        shown = [_facts(record) for record in ran.objects if not record["isControl"]]
        assert shown == [_consumed_facts(record) for record in expected], partition
    assert found


def test_json_of_every_file_parses(root: Path, run: Run) -> None:
    ran = run("dump", "--json", golden.log_dir(root))
    assert ran.code == 0, ran.err
    objects = ran.objects
    assert all(entry.get("isValid", True) for entry in objects)
    assert {Path(entry["file"]).suffix for entry in objects} >= {".log", ".index", ".timeindex", ".snapshot"}


def _log_start(root: Path, partition: str) -> int:
    """DeleteRecords moves it into a segment; the files still have what is below."""
    topic, _, number = partition.rpartition("-")
    for line in (golden.log_dir(root) / "log-start-offset-checkpoint").read_text(encoding="utf-8").splitlines()[2:]:
        name, index, offset = line.split()
        if (name, index) == (topic, number):
            return int(offset)
    return 0


def _facts(record: dict[str, object]) -> dict[str, object]:
    epoch = record["leaderEpoch"]
    return {
        "topic": record["topic"],
        "partition": record["partition"],
        "offset": record["offset"],
        "timestamp": record["timestamp"],
        "type": _TIME_TYPES[int(str(record["timestampType"]))],
        "key": record["key"],
        "value": record["value"],
        "headers": record["headers"],
        "epoch": None if epoch == -1 else epoch,
    }


def _consumed_facts(record: ConsumedRecord) -> dict[str, object]:
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "type": record.timestamp_type,
        "key": _text(record.key),
        "value": _text(record.value),
        "headers": [[name, _text(value)] for name, value in record.headers],
        "epoch": record.leader_epoch,
    }


def _text(data: bytes | None) -> object:
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(data or b"").decode()}
