"""Directories that real Kafka wrote, opened as log directories: read as its consumer read them, closed as they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from seglog.storage.directory.log_dir import LogDir
from seglog.storage.formats.paths import MANIFEST, WITNESS
from seglog.storage.log.log import Log
from seglog.storage.log.reads import UpTo
from tests import golden
from tests.kafka.jars import BEFORE, CURRENT, OLD, KafkaVersion
from tests.kafka.records import ConsumedRecord, Headers

Known = tuple[int, bytes | None, bytes | None, Headers]


def known(record: ConsumedRecord) -> Known:
    return record.offset, record.key, record.value, record.headers


def records(log: Log, up_to: UpTo) -> list[Known]:
    found: list[Known] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        fetched = log.read(offset, up_to=up_to)
        found += [(record.offset, record.key, record.value, tuple(record.headers)) for record in fetched.records()]
        following = max([fetched.next_offset, *(header.next_offset for header, _ in fetched.batches())])
        if following == offset:
            break
        offset = following
    return found


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("version", [CURRENT, BEFORE, OLD])
def test_a_directory_of_kafkas(tmp_path: Path, version: KafkaVersion, clean: bool) -> None:
    root = golden.unpack(tmp_path, version)
    path = golden.log_dir(root)
    if not clean:
        (path / ".kafka_cleanshutdown").unlink()
        (path / "recovery-point-offset-checkpoint").write_bytes(b"0\n0\n")
    before = {file: file.read_bytes() for file in path.glob("*-*/*") if file.is_file()}
    with LogDir.open(str(path)) as opened:
        assert not opened.refused
        assert not any(report.is_eventful for report in opened.reports.values())
        for partition in golden.partitions(root):
            topic, _, number = partition.rpartition("-")
            log = opened.log(topic, int(number))
            expected = golden.expected_records(root, partition)
            assert records(log, UpTo.HIGH_WATERMARK) == [known(record) for record in expected]
            if (root / "expected" / partition / "read_committed.jsonl").exists():
                expected = golden.expected_records(root, partition, isolation="read_committed")
                assert records(log, UpTo.LAST_STABLE) == [known(record) for record in expected]
    after = {file: file.read_bytes() for file in path.glob("*-*/*") if file.is_file()}
    changed = {file for file, data in before.items() if after.get(file) != data}
    if clean:
        # What a start of Kafka changes too: epochs without records, snapshots at which no segment begins
        assert {file.suffix or file.name for file in changed} <= {".snapshot", "leader-epoch-checkpoint"}
        assert not any(file in after for file in changed if file.suffix == ".snapshot")
        assert {file for file in after if file.name not in (MANIFEST, WITNESS)} <= before.keys()
    assert not any(file.suffix == ".log" for file in changed)
