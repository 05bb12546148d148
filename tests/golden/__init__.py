"""Directories that real Kafka wrote, with what its consumer read and its DumpLogSegments printed. No JVM is needed.

`README.md` beside this file says what is in there.
"""

from __future__ import annotations

import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.kafka.jars import KafkaVersion
from tests.kafka.records import ConsumedRecord, parse_consumed
from tests.kit.transaction_states import LeftTransaction

__all__ = [
    "ARCHIVES",
    "TRANSACTIONS",
    "GoldenTopic",
    "archive_name",
    "directories",
    "dump_text",
    "expected_records",
    "left_transactions",
    "log_dir",
    "partitions",
    "topics",
    "unpack",
    "unpack_transactions",
]

ARCHIVES = Path(__file__).parent
TRANSACTIONS = "kafka-4.4.0-transactions"


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenTopic:
    """`shows` says what the topic is there for; `config` is what it was created with."""

    name: str
    shows: str
    partitions: int
    config: dict[str, str]


def archive_name(version: KafkaVersion) -> str:
    return f"kafka-{version}"


def unpack(tmp_path: Path, version: KafkaVersion) -> Path:
    """Unpack one version's set under `tmp_path` (0.2 s) and return its root, which all else here wants."""
    with tarfile.open(ARCHIVES / f"{archive_name(version)}.tar.xz") as tar:
        tar.extractall(tmp_path, filter="data")
    return tmp_path / archive_name(version)


def unpack_transactions(tmp_path: Path) -> Path:
    """Unpack the directory with a transaction in each state and return its root, for `log_dir` and
    `left_transactions`."""
    with tarfile.open(ARCHIVES / f"{TRANSACTIONS}.tar.xz") as tar:
        tar.extractall(tmp_path, filter="data")
    return tmp_path / TRANSACTIONS


def left_transactions(root: Path) -> tuple[list[LeftTransaction], int]:
    """The transactions that Kafka had when it was killed, and the producer id of a transactional id that it had
    deleted."""
    described = json.loads((root / "expected" / "transactions.json").read_text(encoding="utf-8"))
    return [LeftTransaction(**one) for one in described["left"]], described["expired"]


def log_dir(root: Path) -> Path:
    """Kafka's `log.dirs` as it was after a clean stop."""
    return root / "data"


def directories(root: Path) -> list[str]:
    """All partition directories, also `__cluster_metadata-0`, which no consumer can read."""
    return sorted(path.name for path in log_dir(root).iterdir() if path.is_dir())


def partitions(root: Path) -> list[str]:
    """The partition directories with an expectation of records, `topic-0`."""
    return [name for name in directories(root) if (root / "expected" / name / "read_uncommitted.jsonl").exists()]


def topics(root: Path) -> dict[str, GoldenTopic]:
    """The topics that were created for the set, by name; Kafka's internal ones are not among them."""
    described = json.loads((root / "expected" / "topics.json").read_text(encoding="utf-8"))
    return {name: GoldenTopic(name=name, **fields) for name, fields in described.items()}


def expected_records(
    root: Path, partition: str, *, isolation: Literal["read_uncommitted", "read_committed"] = "read_uncommitted"
) -> list[ConsumedRecord]:
    """The records that Kafka's Java consumer read, in offset order.

    Raises FileNotFoundError for read_committed on a partition without transactions: it was not read that way.
    """
    return parse_consumed((root / "expected" / partition / f"{isolation}.jsonl").read_text(encoding="utf-8"))


def dump_text(root: Path, partition: str, file: str, *, deep: bool = False) -> str:
    """The output of DumpLogSegments 4.4.0 for `partition/file`, run in `log_dir(root)` with that relative path.

    `deep`, for `.log` only, is the run with `--deep-iteration --print-data-log` and the internal topic's decoder.
    """
    path = root / "expected" / partition / f"{file}{'.deep' if deep else ''}.txt"
    return path.read_bytes().decode()  # not read_text: a payload's carriage return stays one
