"""The archives are whole: what the package promises is there. What is in the files is tested where they are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import golden
from tests.kafka.jars import BEFORE, CURRENT, OLD, KafkaVersion


@pytest.mark.parametrize("version", [CURRENT, BEFORE, OLD])
def test_every_data_file_has_a_dump_without_complaint(tmp_path: Path, version: KafkaVersion) -> None:
    root = golden.unpack(tmp_path, version)
    for directory in golden.directories(root):
        for path in (golden.log_dir(root) / directory).iterdir():
            if path.suffix in {".log", ".index", ".timeindex", ".txnindex", ".snapshot"}:
                text = golden.dump_text(root, directory, path.name)
                assert text.startswith(f"Dumping {directory}/{path.name}\n")
                assert "ismatch" not in text
            if path.suffix == ".log":
                assert golden.dump_text(root, directory, path.name, deep=True)


@pytest.mark.parametrize("version", [CURRENT, BEFORE, OLD])
def test_every_partition_of_every_topic_has_its_records_in_order(tmp_path: Path, version: KafkaVersion) -> None:
    root = golden.unpack(tmp_path, version)
    names = {f"{topic.name}-{n}" for topic in golden.topics(root).values() for n in range(topic.partitions)}
    assert names <= set(golden.partitions(root))
    for name in golden.partitions(root):
        offsets = [record.offset for record in golden.expected_records(root, name)]
        assert offsets == sorted(set(offsets))
        assert bool(offsets) == (name not in {"empty-0", "deleted-all-0"})


def test_an_open_transaction_hides_what_follows_it(tmp_path: Path) -> None:
    root = golden.unpack(tmp_path, CURRENT)
    everything = golden.expected_records(root, "txn-open-0")
    committed = golden.expected_records(root, "txn-open-0", isolation="read_committed")
    assert committed == everything[: len(committed)] != everything
