"""A topic of a log directory with interleaved transactions, committed, aborted and one that stays open, over several
segments; then as it is, after DeleteRecords, or compacted."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Final, Literal, NamedTuple, get_args

from seglog.core.types import TopicPartition
from seglog.records.record import NewRecord, encode_batch, end_txn_marker
from seglog.storage.compaction.log_cleaner import compact
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.log.admit import Origin

Change = Literal["written", "records deleted", "compacted"]
CHANGES: Final = get_args(Change)
TOPIC: Final = "interleaved"
_STEPS: Final = 240
_PRODUCERS: Final = 4
_KEYS: Final = 12
_CONFIG: Final = {"internal.segment.bytes": "2500", "retention.ms": "-1", "file.delete.delay.ms": "0"}


class Written(NamedTuple):
    """The value of each offset that a read_committed consumer finds, and those that it must not find."""

    committed: dict[int, bytes]
    hidden: dict[int, bytes]


def write(path: Path, change: Change, seed: int = 0) -> Written:
    """Make the topic in a new directory, and close that."""
    rng = Random(seed)
    values: dict[int, bytes] = {}
    of_producer: dict[int, list[int]] = {number: [] for number in range(_PRODUCERS)}
    sequences = dict.fromkeys(of_producer, 0)
    committed: set[int] = set()
    config = {**_CONFIG, "cleanup.policy": "compact"} if change == "compacted" else _CONFIG
    with LogDir.open(path) as directory:
        directory.create_topic(TOPIC, partitions=1, config=config)
        log = directory.logs[TopicPartition(TOPIC, 0)]

        def append(count: int, producer: int | None) -> list[int]:
            first = log.log_end_offset
            records = [
                NewRecord(b"value-%d" % (first + at), key=b"key-%d" % rng.randrange(_KEYS), timestamp=1_700_000_000_000)
                for at in range(count)
            ]
            if producer is None:
                log.append(encode_batch(records), origin=Origin.CLIENT)
            else:
                batch = encode_batch(
                    records,
                    producer_id=producer,
                    producer_epoch=0,
                    base_sequence=sequences[producer],
                    transactional=True,
                )
                log.append(batch, origin=Origin.CLIENT)
                sequences[producer] += count
            added = list(range(first, first + count))
            values.update((offset, b"value-%d" % offset) for offset in added)
            return added

        def end(producer: int, *, commit: bool) -> None:
            marker = end_txn_marker(
                commit=commit, coordinator_epoch=0, producer_id=producer, producer_epoch=0, timestamp=1_700_000_000_000
            )
            log.append(marker, origin=Origin.COORDINATOR)
            committed.update(of_producer[producer] if commit else ())
            of_producer[producer].clear()

        for _ in range(_STEPS):
            producer = rng.randrange(_PRODUCERS)
            draw = rng.random()
            if draw < 0.15:
                committed.update(append(rng.randrange(1, 4), None))
            elif draw < 0.4 and of_producer[producer]:
                end(producer, commit=rng.random() < 0.5)
            else:
                of_producer[producer] += append(rng.randrange(1, 4), producer)
        for producer, offsets in of_producer.items():
            if offsets:
                end(producer, commit=producer % 2 == 0)
        open_from = log.log_end_offset
        append(2, 0)
        committed.update(append(2, None))
        assert len(log.segments) > 3
        if change == "records deleted":
            log.delete_records(open_from // 2)
        if change == "compacted":
            compact(log, first_dirty=0, engine="plain", in_child=False)
        start = log.log_start_offset
        left = {one.offset for one in log.records()}
    found = {offset: value for offset, value in values.items() if offset >= start and offset in left}
    shown = {offset: found[offset] for offset in sorted(committed & found.keys()) if offset < open_from}
    return Written(shown, {offset: value for offset, value in found.items() if offset not in shown})
