"""Messages of magic 0 and 1 against Kafka's own log: converted up from clients, taken as they are from leaders."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from seglog.core.config import LogConfig
from seglog.core.errors import SeglogError
from seglog.records.any_magic import decode
from seglog.records.batch import entries
from seglog.records.compression import compress
from seglog.records.record import NewRecord, encode_batch
from seglog.storage.formats.checkpoints import encode_epochs
from seglog.storage.log.admit import AppendPlan, Origin
from tests.cases import case
from tests.kafka import oracle
from tests.records.peers import PEERS, wrapper
from tests.storage.log.appends import NOW_MS, PlannedLog


def messages(rng: random.Random, magic: int, first: int = 0) -> bytes:
    records = [
        NewRecord(
            rng.randbytes(rng.randrange(30)),
            None if rng.random() < 0.1 else b"k%d" % rng.randrange(5),
            NOW_MS + rng.choice([-9, 5, 0, 3_600_001]) if rng.random() < 0.05 else NOW_MS - rng.randrange(99),
        )
        for _ in range(rng.randint(1, 4))
    ]
    codec = rng.choice((0, 0, 1, 2, 3))
    if not codec:
        return PEERS[0].build_legacy(records, magic, 0, first)
    inside = PEERS[0].build_legacy(records, magic, 0, first if magic == 0 else 0)
    newest = max(record.timestamp for record in records)
    return wrapper(magic, codec, first + len(records) - 1, compress(codec, inside, magic=magic), timestamp=newest)


def without_offsets(data: bytes) -> bytes:
    """As librdkafka sends messages that are not compressed: all at offset 0, which the CRC does not cover."""
    changed = bytearray(data)
    for entry in entries(data):
        changed[entry.position : entry.position + 8] = bytes(8)
    return bytes(changed)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"compression.type": "uncompressed", "cleanup.policy": "compact"},
        {"compression.type": "lz4"},
        {"message.timestamp.type": "LogAppendTime"},
        {"message.timestamp.before.max.ms": "50", "max.message.bytes": "90"},
    ],
    ids=str,
)
def test_clients_messages_are_converted_as_kafka_does(tmp_path: Path, config: dict[str, str]) -> None:
    rng = random.Random(11)
    steps: list[bytes] = []
    for _ in range(200):
        magic = rng.randrange(2)
        data = messages(rng, magic)
        kind = rng.random()
        if kind < 0.2:
            data = without_offsets(data)
        elif kind < 0.25:
            data += messages(rng, rng.randrange(2))
        elif kind < 0.3:
            changed = bytearray(data)
            changed[rng.randrange(18, len(data))] ^= 4
            data = bytes(changed)
        steps.append(data)
    answers = oracle.append_batches(tmp_path / "t-0", steps, now_ms=NOW_MS, config=config)
    log = PlannedLog(LogConfig.from_mapping(config))
    taken = 0
    for data, answer in zip(steps, answers[:-1], strict=True):
        case()
        try:
            plan = log.append(data)
        except SeglogError as error:
            refusal = str(error)
            plan = None
        if plan is None:
            assert "error" in answer, (refusal, answer)
            continue
        taken += 1
        assert isinstance(plan, AppendPlan)
        found = {"firstOffset": plan.first_offset, "lastOffset": plan.last_offset, "maxTimestamp": plan.max_timestamp}
        assert {key: answer.get(key) for key in found} == found, answer
    assert 10 < taken < 200
    written = (tmp_path / "t-0" / "00000000000000000000.log").read_bytes()
    assert [(entry.offset, decode(written, entry)) for entry in entries(written)] == [
        (entry.offset, decode(log.data, entry)) for entry in entries(log.data)
    ]
    if config.get("compression.type") == "uncompressed":
        assert written == log.data


def test_a_follower_takes_old_messages_as_they_are_and_forgets_its_epochs(tmp_path: Path) -> None:
    rng = random.Random(12)
    steps: list[bytes] = []
    offset = 0
    for _ in range(60):
        if rng.random() < 0.3:
            data = bytes(encode_batch([NewRecord(b"v", b"k", NOW_MS)], base_offset=offset, leader_epoch=len(steps)))
        else:
            data = messages(rng, rng.randrange(2), offset)
            if rng.random() < 0.1 and offset:
                # not compressed: Kafka looks at a wrapper's last offset alone, and takes one that overlaps the log
                data = PEERS[0].build_legacy([NewRecord(b"v", timestamp=NOW_MS)], 1, 0, offset - 1)
        steps.append(data)
        last = list(entries(data))[-1]
        offset = max(offset, last.offset + 1)
    answers = oracle.append_batches(tmp_path / "f-0", steps, now_ms=NOW_MS, leader_epoch=99, origin="FOLLOWER")
    log = PlannedLog(leader_epoch=99)
    for data, answer in zip(steps, answers[:-1], strict=True):
        case()
        try:
            plan = log.append(data, Origin.REPLICATION)
        except SeglogError as error:
            refusal = str(error)
            plan = None
        if plan is None:
            assert "error" in answer, (refusal, answer)
            continue
        assert isinstance(plan, AppendPlan)
        assert (answer.get("lastOffset"), answer.get("maxTimestamp")) == (plan.last_offset, plan.max_timestamp)
    assert (tmp_path / "f-0" / "00000000000000000000.log").read_bytes() == log.data
    assert (tmp_path / "f-0" / "leader-epoch-checkpoint").read_bytes() == encode_epochs(log.epochs.entries)
