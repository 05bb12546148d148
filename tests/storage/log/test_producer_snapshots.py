"""Snapshots of producers: layout, Java's order of entries, and hostile bytes."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from seglog.core.errors import (
    CorruptSnapshotError,
)
from seglog.storage.log.producers import (
    Origin,
    ProducerEntry,
    Producers,
    ProducerUpdates,
    decode_snapshot,
    encode_snapshot,
)
from tests.cases import case
from tests.storage.log.producer_log import PID, Tracked, batch, control, marker


def test_the_layout_of_a_snapshot() -> None:
    log = Tracked()
    log.data(batch(3, 2, at=10, epoch=1, txn=True, timestamp=1234))
    data = encode_snapshot(log.producers)
    body = struct.pack(">iqhiqiqiq", 1, PID, 1, 4, 11, 1, 1234, -1, 10)
    assert data == struct.pack(">hI", 1, crc32c(body)) + body
    assert decode_snapshot(data).entries == log.producers.entries
    assert decode_snapshot(data).ongoing == {10: PID}
    assert encode_snapshot(Producers()) == struct.pack(">hIi", 1, crc32c(bytes(4)), 0)


def test_an_entry_without_batches_in_a_snapshot() -> None:
    log = Tracked()
    log.mark(marker(0, epoch=2), control(coordinator_epoch=4))
    data = encode_snapshot(log.producers)
    assert data[10:] == struct.pack(">qhiqiqiq", PID, 2, -1, -1, 0, 60, 4, -1)
    assert decode_snapshot(data).entries == log.producers.entries


def test_open_transactions_of_a_snapshot_are_in_order() -> None:
    producers = Producers()
    entries = {pid: ProducerEntry(0, (), -1, 100 - pid, 5) for pid in range(1, 20)}
    producers.apply(ProducerUpdates(entries, (), ()))
    loaded = decode_snapshot(encode_snapshot(producers))
    assert list(loaded.ongoing) == list(range(81, 100))


# What Java 17's HashMap<Long, Integer> printed after put of each, and after computeIfAbsent of each
IDS = [
    *(1000, 1001, 1002, 7, 23, 39, 1 << 40, (1 << 40) + 256, 4294967303, 1 << 62),
    *(2147483648, 4294967295, 1 << 48, 65543, 131079, (1 << 63) - 1, 999, 31, 47, 63),
]
PUT_12 = [
    *(1099511627776, 1099511628032, 4611686018427387904, 2147483648, 4294967295, 4294967303),
    *(7, 23, 39, 1000, 1001, 1002),
]
PUT = [
    *(1099511627776, 1099511628032, 4611686018427387904, 2147483648, 4294967295, 9223372036854775807),
    *(281474976710656, 131079, 4294967303, 65543, 7, 39, 999, 1000, 1001, 1002, 47, 23, 31, 63),
]
REMOVED = [
    *(1099511627776, 1099511628032, 4611686018427387904, 2147483648, 4294967295, 9223372036854775807),
    *(281474976710656, 131079, 4294967303, 65543, 39, 999, 7, 1001, 1002, 47, 23, 31, 63),
]
COMPUTED_13 = [
    *(4294967295, 2147483648, 4611686018427387904, 1099511628032, 1099511627776, 281474976710656),
    *(4294967303, 39, 23, 7, 1000, 1001, 1002),
]
COMPUTED = [
    *(9223372036854775807, 4294967295, 2147483648, 4611686018427387904, 1099511628032, 1099511627776),
    *(281474976710656, 131079, 65543, 4294967303, 999, 39, 7, 1000, 1001, 1002, 47, 23, 63, 31),
]


def order(producers: Producers) -> list[int]:
    return [pid for pid, _ in producers.in_snapshot_order()]


def test_snapshots_are_in_the_order_of_javas_hash_map() -> None:
    log = Tracked()
    for at, pid in enumerate(IDS):
        log.data(batch(0, at=at, pid=pid, timestamp=at))
        if at == 11:
            assert order(log.producers) == PUT_12
    assert order(log.producers) == PUT
    assert order(decode_snapshot(encode_snapshot(log.producers))) == PUT
    assert log.producers.expire(1, 1) == 1  # 1000; the table does not shrink
    del log.producers.entries[7]
    log.data(batch(0, at=99, pid=7))
    assert order(log.producers) == REMOVED


def test_producers_of_one_append_enter_in_the_order_of_javas_compute_if_absent() -> None:
    for count, expected in ((13, COMPUTED_13), (20, COMPUTED)):
        producers = Producers()
        headers = [batch(0, at=at, pid=pid) for at, pid in enumerate(IDS[:count])]
        updates = producers.prepare(headers, Origin.REPLICATION)
        assert updates is not None
        producers.apply(updates)
        assert list(producers.entries) == expected


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data: data[:0], "a snapshot has 10 bytes or more, this 0"),
        (lambda data: data[:9], "a snapshot has 10 bytes or more, this 9"),
        (lambda data: b"\0\2" + data[2:], "version 2 is unknown, 1 is expected"),
        (lambda data: data[:20] + b"\1" + data[21:], "stored CRC"),
        (lambda data: data + b"\0", "stored CRC"),
        (lambda data: sealed(data[6:] + b"\0"), "1 entries make 56 bytes, 57 are there"),
        (lambda data: sealed(b"\xff\xff\xff\xff" + data[10:]), "-1 entries make"),
        (lambda data: sealed(b"\x7f\xff\xff\xff" + data[10:]), "2147483647 entries make"),
    ],
)
def test_a_corrupt_snapshot(change: object, reason: str) -> None:
    log = Tracked()
    log.data(batch(0))
    assert callable(change)
    with pytest.raises(CorruptSnapshotError) as caught:
        decode_snapshot(change(encode_snapshot(log.producers)), "00000000000000000001.snapshot")
    assert reason in caught.value.reason
    assert str(caught.value).startswith("00000000000000000001.snapshot")


def sealed(body: bytes) -> bytes:
    return struct.pack(">hI", 1, crc32c(body)) + body


@given(st.binary(max_size=120), st.booleans())
def test_any_bytes_are_a_snapshot_or_refused(data: bytes, right_crc: bool) -> None:
    case()
    if right_crc:
        count = len(data) // 46
        data = sealed(struct.pack(">i", count) + data[: count * 46])
    try:
        producers = decode_snapshot(data)
    except CorruptSnapshotError:
        assert not right_crc
    else:
        assert encode_snapshot(decode_snapshot(encode_snapshot(producers))) == encode_snapshot(producers)
