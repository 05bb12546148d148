"""Random logs, indexes and snapshots, whole and damaged, for comparing one dump with another."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from random import Random

from crc32c import crc32c

from seglog.core.types import TimestampType
from seglog.records.batch import BATCH_OVERHEAD, patch_offset_and_epoch
from seglog.records.compression import compress
from seglog.records.record import NewRecord, encode_batch, end_txn_marker
from seglog.storage.log.index import OFFSET_ENTRY, TIME_ENTRY

_ODD_BYTES = bytes.fromhex("41 80 8f 90 9f a0 bf c0 c2 df e0 e1 ed ef f0 f1 f4 f5 f8 ff")
"""One of each kind that matters in malformed UTF-8."""
_TIME = 1_700_000_000_000


def some_bytes(random: Random, size: int) -> bytes:
    kind = random.randrange(3)
    if kind == 0:
        return random.randbytes(size)
    if kind == 1:
        return bytes(random.choice(_ODD_BYTES) for _ in range(size))
    return "".join(random.choice('abc é日🦀\n"') for _ in range(size // 2)).encode()


def some_record(random: Random) -> NewRecord:
    headers = [
        (random.choice("abé🦀") * random.randrange(3), random.choice([None, some_bytes(random, 3)]))
        for _ in range(random.choice([0, 0, 0, 1, 3]))
    ]
    return NewRecord(
        random.choice([None, some_bytes(random, random.randrange(40))]),
        key=random.choice([None, some_bytes(random, random.randrange(8))]),
        timestamp=_TIME + random.randrange(1000),
        headers=headers,
    )


def some_batch(random: Random, offset: int) -> tuple[bytearray, int]:
    """A batch of format 2 at ``offset``, and how many records it has."""
    if random.random() < 0.1:
        marker = end_txn_marker(
            commit=random.random() < 0.5, coordinator_epoch=3, producer_id=7, producer_epoch=1, timestamp=_TIME,
            base_offset=offset, leader_epoch=2,
        )  # fmt: skip
        return bytearray(marker), 1
    records = [some_record(random) for _ in range(random.randrange(1, 6))]
    append = random.random() < 0.2
    has_producer = random.random() < 0.4
    batch = encode_batch(
        records,
        codec=random.choice([0, 0, 0, 1, 2, 3, 4]),
        timestamp_type=TimestampType.LOG_APPEND_TIME if append else TimestampType.CREATE_TIME,
        log_append_time=_TIME + 9999 if append else -1,
        producer_id=7 if has_producer else -1,
        producer_epoch=1 if has_producer else -1,
        base_sequence=random.choice([0, 2**31 - 3]) if has_producer else -1,
        transactional=has_producer and random.random() < 0.5,
    )
    patch_offset_and_epoch(batch, 0, offset, random.randrange(5))
    return batch, len(records)


def legacy_message(
    magic: int, offset: int, key: bytes | None, value: bytes | None, *, codec: int = 0, append_time: bool = False
) -> bytes:
    """A message of format 0 or 1."""
    body = struct.pack(">bb", magic, codec | (8 if append_time and magic else 0))
    body += struct.pack(">q", _TIME) if magic else b""
    for part in (key, value):
        body += struct.pack(">i", -1 if part is None else len(part)) + (part or b"")
    message = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", offset, len(message)) + message


def some_legacy(random: Random, offset: int) -> tuple[bytearray, int]:
    """One message of format 0 or 1, or a compressed one of several; and how many."""
    magic, append_time = random.randrange(2), random.random() < 0.3

    def some() -> bytes | None:
        return random.choice([None, some_bytes(random, 9)])

    if random.random() < 0.4:
        return bytearray(legacy_message(magic, offset, some(), some(), append_time=append_time)), 1
    count, codec = random.randrange(1, 4), random.choice([1, 2, 3])
    inner = b"".join(legacy_message(magic, i if magic else offset + i, some(), some()) for i in range(count))
    value = compress(codec, inner, magic=magic)
    wrapper = legacy_message(magic, offset + count - 1, None, value, codec=codec, append_time=append_time)
    return bytearray(wrapper), count


def some_log(random: Random) -> list[bytearray]:
    """Batches and messages of all formats, with gaps between their offsets here and there."""
    offset = random.choice([0, 0, 5, 1 << 40])
    batches = []
    for _ in range(random.randrange(1, 6)):
        batch, count = (some_legacy if random.random() < 0.25 else some_batch)(random, offset)
        offset += count + (random.randrange(5) if random.random() < 0.1 else 0)
        batches.append(batch)
    return batches


def damage(random: Random, batches: list[bytearray]) -> None:
    """Do one thing to a log that does not belong there, or nothing; sometimes the CRC is made right again."""
    batch = random.choice(batches)
    kind = random.randrange(7)
    if kind == 1 and batch:
        batch[random.randrange(len(batch))] ^= 1 << random.randrange(8)
    elif kind == 2 and batch:
        batch[random.randrange(min(BATCH_OVERHEAD, len(batch)))] = random.randrange(256)
    elif kind == 3 and batches[-1]:
        del batches[-1][random.randrange(len(batches[-1])) :]
    elif kind == 4 and len(batch) > BATCH_OVERHEAD:
        batch[random.randrange(BATCH_OVERHEAD, len(batch))] = random.randrange(256)
        _make_crc_right(batch)
    elif kind == 5 and len(batch) > BATCH_OVERHEAD:
        batch[57:61] = struct.pack(">i", random.choice([0, 1, 2, 100, -1, 2**31 - 1]))
        _make_crc_right(batch)
    elif kind == 6:
        batches.append(bytearray(some_bytes(random, random.randrange(40))))


def _make_crc_right(batch: bytearray) -> None:
    if batch[16] == 2:
        batch[17:21] = struct.pack(">I", crc32c(bytes(batch[21:])))


def write_partition(random: Random, directory: Path) -> None:
    """A ``.log`` with indexes, a ``.txnindex`` and a ``.snapshot`` beside it, most of them damaged a little."""
    base = random.choice([0, 0, 1000])
    log, index, times = bytearray(), bytearray(), bytearray()
    largest, largest_offset, offset = -1, base, base
    for _ in range(random.randrange(12)):
        records = [NewRecord(b"v" * random.randrange(60), timestamp=_TIME + random.randrange(1000)) for _ in range(2)]
        batch = encode_batch(records, codec=random.choice([0, 0, 4]))
        patch_offset_and_epoch(batch, 0, offset, 0)
        timestamp = max(record.timestamp for record in records)
        if timestamp > largest:
            largest, largest_offset = timestamp, offset + 1
        if log and random.random() < 0.6:
            index += OFFSET_ENTRY.pack(offset + 1 - base, len(log))
            if not times or TIME_ENTRY.unpack(times[-12:])[0] < largest:
                times += TIME_ENTRY.pack(largest, largest_offset - base)
        log += batch
        offset += len(records)
    for kind, data, unit in ((".index", index, 8), (".timeindex", times, 12), (".txnindex", _txn_index(random), 34)):
        (directory / f"{base:020d}{kind}").write_bytes(_maybe_damaged(random, data, unit))
    (directory / f"{base:020d}.log").write_bytes(log if random.random() < 0.85 else _maybe_damaged(random, log, 1))
    (directory / f"{base:020d}.snapshot").write_bytes(_snapshot(random))


def _maybe_damaged(random: Random, data: bytearray, unit: int) -> bytes:
    kind = random.randrange(8)
    if kind == 0 and data:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    elif kind == 1:
        del data[random.randrange(len(data) + 1) :]
    elif kind == 2:
        data += random.randbytes(random.randrange(1, 30))
    elif kind == 3:
        data += bytes(unit * random.choice([1, 5, 3000]))
    elif kind == 4 and len(data) >= unit:
        start = random.randrange(len(data) // unit) * unit
        data[start : start + unit] = random.randbytes(unit)
    return bytes(data)


def _txn_index(random: Random) -> bytearray:
    data = bytearray()
    for _ in range(random.randrange(4)):
        version = 0 if random.random() < 0.9 else random.choice([1, 256, -1])
        data += struct.pack(">hqqqq", version, *(random.randrange(99) for _ in range(4)))
    return data


def _snapshot(random: Random) -> bytes:
    entries = bytearray()
    count = random.randrange(5)
    for number in range(count):
        entries += struct.pack(
            ">qhiqiqiq", number * 1000 + random.randrange(9), random.randrange(5), random.choice([-1, 0, 5, 2**31 - 1]),
            random.choice([-1, 3, 99]), random.randrange(9), _TIME, random.choice([-1, 4]), random.choice([-1, 0, 7]),
        )  # fmt: skip
    body = struct.pack(">i", count) + entries
    if random.random() < 0.2:
        body = _maybe_damaged(random, bytearray(body), 46)
    crc = crc32c(body) ^ (random.random() < 0.1)
    snapshot = struct.pack(">hI", 1 if random.random() < 0.9 else random.choice([0, 2, -1]), crc) + body
    return snapshot if random.random() < 0.9 else snapshot[: random.randrange(len(snapshot))]
