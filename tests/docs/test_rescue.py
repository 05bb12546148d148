"""Each entry of docs/rescue.md: the symptom is made, its commands run, and the answer is in what they print."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from seglog.cli.main import main
from seglog.records.record import NewRecord, encode_batch, end_txn_marker
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.log.admit import Origin
from seglog.storage.log.log import Log
from tests.docs.blocks import blocks, commands

_PAGE: Final = (Path(__file__).parents[2] / "docs" / "rescue.md").read_text()
_ENTRIES: Final[dict[str, str]] = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", _PAGE, re.MULTILINE | re.DOTALL))
_YEAR_MS: Final = 365 * 86_400_000
_OLD_MS: Final = 1_600_000_000_000


def _fill(log: Log, *timestamps: int, key: bytes = b"k") -> None:
    for timestamp in timestamps:
        log.append(encode_batch([NewRecord(b"v" * 300, key, timestamp)]), origin=Origin.CLIENT)


def _marker(log: Log) -> None:
    marker = end_txn_marker(
        commit=True, coordinator_epoch=0, producer_id=7, producer_epoch=0, timestamp=_OLD_MS, leader_epoch=0
    )
    log.append(marker, origin=Origin.COORDINATOR)


def _transactional(log: Log) -> None:
    records = [NewRecord(b"v", b"k", _OLD_MS)]
    log.append(
        encode_batch(records, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True),
        origin=Origin.CLIENT,
    )


def _future(opened: LogDir, _data: Path) -> None:
    log = opened.log("flights")
    _fill(log, log.clock.now_ms() + _YEAR_MS, _OLD_MS, _OLD_MS)


def _past(opened: LogDir, _data: Path) -> None:
    _fill(opened.log("flights"), _OLD_MS, _OLD_MS, _OLD_MS)


def _deleted(opened: LogDir, _data: Path) -> None:
    _fill(opened.log("flights"), _OLD_MS)
    opened.delete_topic("flights")


def _large_key(opened: LogDir, _data: Path) -> None:
    _fill(opened.log("flights"), *[_OLD_MS] * 20, key=b"N14228")


def _deleted_records(opened: LogDir, data: Path) -> None:
    _fill(opened.log("flights"), *[_OLD_MS] * 3)
    opened.delete_records("flights", 0, 1)
    aside = data / "old-0.0123456789abcdef0123456789abcdef-stray"
    aside.mkdir()
    (aside / f"{0:020d}.log").write_bytes(b"x" * 9000)


def _committed(opened: LogDir, _data: Path) -> None:
    _transactional(opened.log("flights"))
    _marker(opened.log("flights"))


def _open(opened: LogDir, _data: Path) -> None:
    _transactional(opened.log("flights"))


def _compacted(opened: LogDir, _data: Path) -> None:
    _fill(opened.log("flights"), *[_OLD_MS] * 5)


def _moved_start(opened: LogDir, _data: Path) -> None:
    _fill(opened.log("flights"), *[_OLD_MS] * 5)
    opened.delete_records("flights", 0, 2)


def _damaged_replica(opened: LogDir, data: Path) -> None:
    _fill(opened.log("flights"), *[_OLD_MS] * 5)
    opened.close()
    shutil.copytree(data, data.with_name("replica"))
    path = data / "flights-0" / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:-1] + b"x")


def _foreign(opened: LogDir, data: Path) -> None:
    _fill(opened.log("flights"), _OLD_MS)
    (data / "lost+found").mkdir()


_SYMPTOMS: Final[dict[str, tuple[Callable[[LogDir, Path], None], tuple[str, ...]]]] = {
    "Retention is not deleting old messages": (_future, ("in the future", "deletion begins at the oldest segment")),
    "Messages disappear before retention.ms": (_past, ("with event times that were too old already",)),
    "Recover a deleted topic": (_deleted, ("topic flights with id ", "1 topic came back", "flights-0 ")),
    "Disk full: which topic, which key": (_large_key, ("N14228", "compaction would drop 95.0%", "all in zstd: ")),
    "Disk still full after deleting a topic or records": (
        _deleted_records,
        ("set aside: ", "DeleteRecords has moved the start"),
    ),
    "Compacted topic keeps growing, log cleaner does not run": (
        _compacted,
        ("in the active segment, which is never cleaned", "compaction would drop 80.0%"),
    ),
    "Consumer lag stuck at 1": (_committed, ("has a lag of 1: offset 1: commit marker", "not a backlog")),
    "read_committed consumer is stuck, last stable offset does not move": (
        _open,
        ("producer 7 (epoch 0) has a transaction open since offset 0",),
    ),
    "OFFSET_OUT_OF_RANGE, or a seek lands at another offset": (
        _moved_start,
        ("offset 1 is below the log start offset 2: DeleteRecords has removed it",),
    ),
    "CorruptRecordException, CRC mismatch: one replica is damaged": (
        _damaged_replica,
        ("set the bytes of offset", ": as in ", "the originals are in ", "no damage"),
    ),
    "Kafka does not start": (_foreign, ("lost+found is neither a partition's directory",)),
}


def test_each_entry_has_its_symptom() -> None:
    assert set(_ENTRIES) == set(_SYMPTOMS)


@pytest.mark.parametrize("title", _SYMPTOMS)
def test_the_commands_of_an_entry_lead_to_the_answer(
    title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make, answers = _SYMPTOMS[title]
    with LogDir.open(tmp_path / "data") as opened:
        opened.create_topic(
            "flights", 1, {"internal.segment.bytes": 700, "message.timestamp.after.max.ms": 2 * _YEAR_MS}
        )
        make(opened, tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    run = [command.line for block in blocks(_ENTRIES[title]) for command in commands(block.text)]
    assert 1 <= len(run) <= 3
    for line in run:
        assert main(shlex.split(line)[1:]) in (0, 1), line
    told = "".join(capsys.readouterr())
    for answer in answers:
        assert answer in told
