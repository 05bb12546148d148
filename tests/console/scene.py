"""Two brokers' log directories with something of everything that the console draws.

``flights``: several codecs, epochs and segments, transactions of three producers of which some aborted and one is open,
retention by time and size. The second directory has the same without the last segments. ``prices``: compacted, with
tombstones and holes. ``hostile``: records that a page must show as text.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from random import Random
from typing import Final

from seglog.core.clock import SystemClock
from seglog.core.types import TopicPartition
from seglog.records.compression import Codec
from seglog.records.record import NewRecord, encode_batch, end_txn_marker
from seglog.storage.compaction.log_cleaner import compact
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.formats.paths import LOCK, META_PROPERTIES
from seglog.storage.log.admit import Origin
from seglog.storage.log.log import Log

DAY: Final = 86_400_000
SCRIPT: Final = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
RIGHT_TO_LEFT: Final = "\u202eevil\u202c \u2066x"
MEGABYTE: Final = 1 << 20
_CODECS: Final = (Codec.NONE, Codec.LZ4, Codec.ZSTD, Codec.GZIP, Codec.SNAPPY)
_AIRPORTS: Final = ("EWR", "JFK", "LGA", "IAH", "MIA", "ORD", "SFO", "ATL")


def make(path: Path, *, batches: int = 300, now: int | None = None) -> None:
    """Make ``broker-1`` and ``broker-2`` in ``path``."""
    rng = Random(7)
    first = path / "broker-1"
    now = SystemClock().now_ms() if now is None else now
    with LogDir.open(first) as directory:
        flights = {
            "internal.segment.bytes": "180000",
            "index.interval.bytes": "4096",
            "retention.ms": str(7 * DAY),
            "retention.bytes": "1000000",
            "file.delete.delay.ms": "0",
        }
        directory.create_topic("flights", partitions=2, config=flights)
        for number in range(2):
            _fly(directory.logs[TopicPartition("flights", number)], rng, batches, now)
        prices = {"cleanup.policy": "compact", "internal.segment.bytes": "6000", "file.delete.delay.ms": "0"}
        directory.create_topic("prices", partitions=1, config=prices)
        _price(directory.logs[TopicPartition("prices", 0)], rng, now)
        directory.create_topic("hostile", partitions=1, config={"retention.ms": "-1", "max.message.bytes": "2000000"})
        _attack(directory.logs[TopicPartition("hostile", 0)], now)
    second = path / "broker-2"
    shutil.copytree(first, second)
    (second / LOCK).unlink(missing_ok=True)
    for number, directory_ in ((1, first), (2, second)):
        properties = (directory_ / META_PROPERTIES).read_text().splitlines()
        kept = [line for line in properties if not line.startswith(("node.id", "broker.id", "directory.id"))]
        (directory_ / META_PROPERTIES).write_text("\n".join([*kept, f"node.id={number}", ""]))
    for number in range(2):
        partition = second / f"flights-{number}"
        for log in sorted(partition.glob("*.log"))[-2:]:
            for file in partition.glob(f"{log.stem}.*"):
                file.unlink()


def _fly(log: Log, rng: Random, batches: int, now: int) -> None:
    time, sequences = now - 6 * DAY, dict.fromkeys((4001, 4002, 4003), 0)
    step = 5 * DAY // batches
    for number in range(batches):
        epoch = number * 4 // batches
        records = []
        for _ in range(rng.randint(3, 24)):
            time += rng.randint(0, step // 7)
            delay = rng.randint(-12, 140)
            value = {
                "flight": f"UA{rng.randint(1, 1999)}",
                "from": rng.choice(_AIRPORTS),
                "to": rng.choice(_AIRPORTS),
                "delay": delay,
                "crew": [rng.randint(100, 999) for _ in range(rng.randint(2, 6))],
                "remarks": "".join(rng.choices("abcdefghijklmnop ", k=rng.randint(0, 220))),
            }
            headers = [("source", b"demo"), ("trace", b"%016x" % rng.getrandbits(64))] if delay > 90 else []
            records.append(
                NewRecord(json.dumps(value).encode(), key=b"N%d" % rng.randint(10, 99), timestamp=time, headers=headers)
            )
        producer = rng.choice((None, None, 4001, 4002, 4003))
        if number < batches // 3 or producer is None or number == batches - 1:
            if number == batches - 1:
                producer = 4003
            else:
                log.append_records(records, codec=rng.choice(_CODECS), leader_epoch=epoch)
                continue
        batch = encode_batch(
            records,
            codec=Codec.LZ4,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=sequences[producer],
            transactional=True,
        )
        log.append(batch, origin=Origin.CLIENT, leader_epoch=epoch)
        sequences[producer] += len(records)
        if number < batches - 1 and rng.random() < 0.9:
            marker = end_txn_marker(
                commit=rng.random() < 0.6, coordinator_epoch=0, producer_id=producer, producer_epoch=0, timestamp=time
            )
            log.append(marker, origin=Origin.COORDINATOR, leader_epoch=epoch)


def _price(log: Log, rng: Random, now: int) -> None:
    for number in range(160):
        records = [
            NewRecord(
                None if rng.random() < 0.15 else b'{"price": %d}' % rng.randint(10, 900),
                key=b"item-%d" % rng.randint(1, 40),
                timestamp=now - DAY + number * 1000,
            )
            for _ in range(rng.randint(2, 9))
        ]
        log.append_records(records, codec=Codec.ZSTD if number % 3 else Codec.NONE, leader_epoch=0)
    compact(log, first_dirty=0, engine="plain", in_child=False)


def _attack(log: Log, now: int) -> None:
    log.append_records(
        [
            NewRecord(SCRIPT.encode(), key=SCRIPT.encode(), timestamp=now, headers=[(SCRIPT, SCRIPT.encode())]),
            NewRecord(RIGHT_TO_LEFT.encode(), key=b"rtl", timestamp=now + 1),
            NewRecord(b"\xff\xfe\x00binary", key=None, timestamp=now + 2),
            NewRecord(None, key=b"tombstone", timestamp=now + 3),
        ]
    )
    log.append_records([NewRecord(b"<b>" + b"x" * MEGABYTE, key=b"large", timestamp=now + 4)])
    log.append_records([NewRecord(b'{"a": [1, {"b": "</script>"}]}', key=b"json", timestamp=now + 5)])


if __name__ == "__main__":
    make(Path(sys.argv[1]))
