"""Our admission against Kafka's own log: the same appends are refused for the same reasons, the others leave the same
bytes."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from seglog.core.config import LogConfig
from seglog.core.errors import (
    CorruptBatchError,
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTimestampError,
    InvalidTransactionStateError,
    OutOfOrderSequenceError,
    RecordTooLargeError,
    SeglogError,
    TransactionCoordinatorFencedError,
    UnexpectedAppendOffsetError,
    UnknownLeaderEpochError,
)
from seglog.core.types import MAX_INT64
from seglog.records.any_magic import decode
from seglog.records.batch import entries
from seglog.records.record import NewRecord, encode_batch
from seglog.storage.formats.checkpoints import encode_epochs
from seglog.storage.log.admit import AppendPlan, Duplicate, Origin
from seglog.storage.log.producers import decode_snapshot, encode_snapshot
from tests.cases import case
from tests.kafka import oracle
from tests.storage.log.appends import NOW_MS, PlannedLog, Traffic

ERRORS: Final = {
    CorruptBatchError: "CorruptRecordException",
    InvalidProducerEpochError: "InvalidProducerEpochException",
    InvalidRecordError: "InvalidRecordException",
    InvalidTimestampError: "RecordValidationException",
    InvalidTransactionStateError: "InvalidTxnStateException",
    OutOfOrderSequenceError: "OutOfOrderSequenceException",
    RecordTooLargeError: "RecordTooLargeException",
    TransactionCoordinatorFencedError: "TransactionCoordinatorFencedException",
}
ALL_CODECS: Final = (0, 1, 2, 3, 4)


@pytest.mark.parametrize(
    ("config", "transaction_version"),
    [
        ({"max.message.bytes": "1000"}, 2),
        ({"max.message.bytes": "1000"}, 0),
        ({"cleanup.policy": "compact"}, 2),
        ({"message.timestamp.type": "LogAppendTime"}, 2),
        ({"message.timestamp.before.max.ms": "3600000"}, 1),
        ({"message.timestamp.after.max.ms": "9223372036854775807"}, 2),
        ({"compression.type": "uncompressed"}, 2),
        ({"compression.type": "lz4", "message.timestamp.type": "LogAppendTime"}, 2),
        ({"compression.type": "gzip", "compression.gzip.level": "1"}, 2),
        ({"seglog.validate.records": "true"}, 2),
    ],
    ids=str,
)
@pytest.mark.parametrize("seed", range(2))
def test_kafka_refuses_and_writes_the_same(
    tmp_path: Path, config: dict[str, str], transaction_version: int, seed: int
) -> None:
    log = PlannedLog(LogConfig.from_mapping(config))
    checks_all = log.config.seglog_validate_records or log.config.compact
    traffic = Traffic(seed, codecs=ALL_CODECS, hostile_headers=checks_all)
    appends = [traffic.next() for _ in range(600)]
    directory = tmp_path / "t-0"
    answers = oracle.append_batches(
        directory,
        [data for data, _ in appends],
        now_ms=NOW_MS,
        config={key: value for key, value in config.items() if not key.startswith("seglog")},
        transaction_version=transaction_version,
    )
    for (data, origin), answer in zip(appends, answers[:-1], strict=True):
        case()
        found: dict[str, object]
        plan = tried(log, data, origin, transaction_version)
        if isinstance(plan, SeglogError):
            assert answer.get("error") in (ERRORS[type(plan)], also(plan)), (str(plan), answer)
            continue
        if isinstance(plan, Duplicate):
            found = {"firstOffset": plan.base_offset, "lastOffset": plan.last_offset, "logAppendTime": plan.timestamp}
        else:
            found = {
                "firstOffset": plan.first_offset,
                "lastOffset": plan.last_offset,
                "logAppendTime": plan.log_append_time,
                "maxTimestamp": plan.max_timestamp,
                "lastStableOffset": log.last_stable_offset,
            }
        assert {key: answer.get(key) for key in found} == found, answer
    assert answers[-1]["logEndOffset"] == log.end_offset
    written = (directory / "00000000000000000000.log").read_bytes()
    if config.get("compression.type", "uncompressed") == "uncompressed":
        assert written == log.data
    else:
        assert contents(written) == contents(bytes(log.data))
    snapshot = (directory / f"{log.end_offset:020d}.snapshot").read_bytes()
    assert snapshot == encode_snapshot(log.producers)
    assert encode_snapshot(decode_snapshot(snapshot)) == snapshot
    assert (directory / "leader-epoch-checkpoint").read_bytes() == encode_epochs(log.epochs.entries)


def test_a_follower_takes_and_refuses_the_same(tmp_path: Path) -> None:
    """Slices of a leader's log, most of them the next ones; some overlap, leave a gap, are torn or of a later epoch."""
    rng = random.Random(3)
    leader = PlannedLog(LogConfig.from_mapping({"message.timestamp.after.max.ms": MAX_INT64}))
    traffic = Traffic(3, codecs=ALL_CODECS)
    while len(leader.plans) < 400:
        if rng.random() < 0.02:
            leader.leader_epoch += rng.randint(1, 2)
        with suppress(SeglogError):
            leader.append(*traffic.next(), transaction_version=2)
    steps: list[bytes] = []
    at = 0
    while at < 395:
        start = max(at + rng.choice([0, 0, 0, 0, 0, 0, 1, -1, -2]), 0)
        stop = start + rng.randint(1, 3)
        pieces = [bytes(plan.data) for plan in leader.plans[start:stop]]
        data = b"".join(pieces)
        if rng.random() < 0.1:
            data = data[: -rng.randint(1, 70)]
        elif rng.random() < 0.05:
            data = b"".join(reversed(pieces))
        elif rng.random() < 0.05:
            data = flipped(data, rng.randrange(21, 61))
        steps.append(data)
        at = max(at, stop)
    for epoch in (2, 100):
        directory = tmp_path / f"f-{epoch}"
        answers = oracle.append_batches(directory, steps, now_ms=NOW_MS, leader_epoch=epoch, origin="FOLLOWER")
        follower = PlannedLog(leader_epoch=epoch)
        refused = 0
        for data, answer in zip(steps, answers[:-1], strict=True):
            case()
            plan = tried(follower, data, Origin.REPLICATION)
            if isinstance(plan, InvalidRecordError | UnknownLeaderEpochError):
                # nothing to append is no error to Kafka, which then has no last offset to tell either
                assert answer["lastOffset"] == -1, (str(plan), answer)
            elif isinstance(plan, SeglogError):
                assert answer.get("error") in FOLLOWER_ERRORS[type(plan)], (str(plan), answer)
            if not isinstance(plan, AppendPlan):
                refused += 1
                continue
            assert (answer.get("firstOffset"), answer.get("lastOffset")) == (plan.first_offset, plan.last_offset)
            assert answer["maxTimestamp"] == plan.max_timestamp
        assert 5 < refused < len(steps) - 20
        assert (directory / "00000000000000000000.log").read_bytes() == follower.data
        snapshot = (directory / f"{follower.end_offset:020d}.snapshot").read_bytes()
        assert snapshot == encode_snapshot(follower.producers)
        assert (directory / "leader-epoch-checkpoint").read_bytes() == encode_epochs(follower.epochs.entries)


FOLLOWER_ERRORS: Final = {
    CorruptBatchError: ("CorruptRecordException",),
    InvalidTransactionStateError: ("InvalidTxnStateException",),
    UnexpectedAppendOffsetError: ("UnexpectedAppendOffsetException", "OffsetsOutOfOrderException"),
}


def flipped(data: bytes, position: int) -> bytes:
    changed = bytearray(data)
    changed[position] ^= 1
    return bytes(changed)


def test_snapshots_of_many_producers_are_in_kafkas_order(tmp_path: Path) -> None:
    rng = random.Random(5)
    ids = [
        *range(1000, 1040),
        *(rng.randrange(1 << 62) for _ in range(150)),
        *(1 << shift for shift in range(0, 62, 7)),
    ]
    rng.shuffle(ids)
    for count in (1, 12, 13, 100, len(ids)):
        case()
        batches = [
            bytes(encode_batch([NewRecord(b"v", timestamp=NOW_MS)], producer_id=one, producer_epoch=3, base_sequence=0))
            for one in ids[:count]
        ]
        log = PlannedLog()
        for batch in batches:
            log.append(batch)
        directory = tmp_path / f"p-{count}"
        oracle.append_batches(directory, batches, now_ms=NOW_MS)
        assert (directory / f"{count:020d}.snapshot").read_bytes() == encode_snapshot(log.producers)


def tried(
    log: PlannedLog, data: bytes, origin: Origin, transaction_version: int = 0
) -> AppendPlan | Duplicate | SeglogError:
    try:
        return log.append(data, origin, transaction_version=transaction_version)
    except SeglogError as error:
        return error


def also(error: SeglogError) -> str:
    """Kafka names an error in a record's content by the list of records; the protocol's code is the same."""
    return "RecordValidationException" if isinstance(error, InvalidRecordError) else ""


def contents(log: bytes) -> list[object]:
    """The decoded batches of a log: everything that does not depend on the compressor."""
    return [(entry.offset, entry.magic, decode(log, entry)) for entry in entries(log)]
