"""A coordinator's log with any byte flipped: the state is right, or the partition is refused. It is never another."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any
from uuid import UUID

import pytest

from seglog.coordinators.group_coordinator import GroupCoordinator
from seglog.coordinators.group_records import OffsetAndMetadata, OffsetCommitKey, encode
from seglog.coordinators.transactions.coordinator import TransactionContext
from seglog.coordinators.transactions.log_records import encode_key, encode_value
from seglog.coordinators.transactions.transaction import Transaction
from seglog.core.clock import SystemClock
from seglog.core.errors import CorruptError
from seglog.core.ground import Ground
from seglog.core.topic_names import OFFSETS_TOPIC, TRANSACTION_TOPIC
from seglog.core.types import TopicPartition
from seglog.records.compression import Codec
from seglog.records.record import NewRecord, encode_batch
from seglog.replication.replica import Replica
from seglog.storage.compaction.log_cleaner import compact
from seglog.storage.directory.log_dir import LogDir
from tests.coordinators.running_coordinator import RunningCoordinator
from tests.kit.memory_fs import MemoryFs
from tests.lone import led

CONFIG = {"internal.segment.bytes": 1000, "index.interval.bytes": 100, "retention.ms": -1}
ROUNDS = 6
State = dict[Any, Any]


def _offset_records(round_: int) -> list[NewRecord]:
    """Offsets of four groups, and one that is deleted again."""
    found = []
    for number in range(4):
        key, value = encode((OffsetCommitKey(f"group {number}", "t", 0), OffsetAndMetadata(round_ * 100, -1, "m", 0)))
        found.append(NewRecord(value, key))
    key, value = encode((OffsetCommitKey("deleted", "t", 0), OffsetAndMetadata(1, -1, "", 0) if round_ < 2 else None))
    return [*found, NewRecord(value, key)]


def _transaction_records(round_: int) -> list[NewRecord]:
    found = [
        NewRecord(encode_value(Transaction(f"id {number}", number, round_, 60_000, 5), 2), encode_key(f"id {number}"))
        for number in range(4)
    ]
    return [*found, NewRecord(None if round_ > 1 else found[0].value, encode_key("deleted"))]


@cache
def _coordinator() -> GroupCoordinator:
    return RunningCoordinator().coordinator


def _offsets(replica: Replica) -> State:
    context = _coordinator().make_context(replica)
    for _ in context.replay():
        pass
    offsets = context.shard.offsets
    offsets.settle(replica.log.log_end_offset)
    return {group: {place: one.value for place, one in offsets.of(group).items()} for group in offsets.groups()}


def _transactions(replica: Replica) -> State:
    context = TransactionContext(replica, SystemClock())
    for _ in context.replay():
        pass
    return dict(context.shard.transactions)


KINDS: dict[str, tuple[str, Callable[[int], Sequence[NewRecord]], Callable[[Replica], State]]] = {
    "offsets": (OFFSETS_TOPIC, _offset_records, _offsets),
    "transactions": (TRANSACTION_TOPIC, _transaction_records, _transactions),
}


def _outcome(replay: Callable[[], State], expected: State) -> CorruptError | None:
    try:
        found = replay()
    except CorruptError as error:
        return error
    assert found == expected
    return None


@pytest.mark.parametrize("is_compacted", [False, True], ids=["whole", "compacted"])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("kind", KINDS)
def test_any_flipped_byte_is_found_or_changes_nothing(kind: str, codec: Codec, is_compacted: bool) -> None:
    topic, records, replay = KINDS[kind]
    fs, rng = MemoryFs(), random.Random(f"{kind} {codec}")
    with LogDir.open("/logs", ground=Ground(fs=fs, rng=rng)) as directory:
        directory.create_topic(topic, 1, CONFIG)
        replica = led(directory, TopicPartition(topic, 0), UUID(int=1))
        log = replica.log
        for round_ in range(ROUNDS):
            log.append(encode_batch(records(round_), codec=codec))
        log.roll()
        if is_compacted:
            compact(log, first_dirty=0, in_child=False, engine="plain")
        log.append(encode_batch(records(ROUNDS), codec=codec))
        expected = replay(replica)
        assert len(expected) == 4
        found = 0
        for segment in log.segments:
            for position in range(segment.size):
                was = segment.log.pread(1, position)
                segment.log.pwrite(bytes([was[0] ^ 1 << rng.randrange(8)]), position)
                error = _outcome(lambda: replay(replica), expected)
                if error is not None:
                    found += 1
                    assert error.file == segment.paths.log, position
                    assert error.position >= 0
                    assert error.offset is not None
                segment.log.pwrite(was, position)
            if not segment.size:
                continue
            whole = segment.log.pread(segment.size, 0)
            segment.log.truncate(segment.size // 2)
            with pytest.raises(CorruptError):
                replay(replica)
            segment.log.pwrite(whole, 0)
        assert found > log.size * 0.7, "only base offsets and epochs are outside of the CRC"
        assert replay(replica) == expected
