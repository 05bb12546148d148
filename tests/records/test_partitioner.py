"""Partitioners against kafka-python's murmur2 and librdkafka's own answers."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.records.partitioner import (
    Partitioner,
    RoundRobinPartitioner,
    StickyPartitioner,
    murmur2,
    partition_for_key,
)
from tests.cases import case
from tests.records.peers import kafka_python_murmur2


@pytest.mark.parametrize(
    ("key", "java"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_as_javas(key: bytes, java: int) -> None:
    """Kafka's ``UtilsTest.testMurmur2``."""
    assert murmur2(key) == java & 0xFFFFFFFF
    assert partition_for_key(key, 1000) == (java & 0x7FFFFFFF) % 1000


@given(st.binary(max_size=70))
def test_murmur2_against_kafka_python(key: bytes) -> None:
    case()
    assert murmur2(key) == kafka_python_murmur2(key) & 0xFFFFFFFF
    assert murmur2(memoryview(bytearray(key))) == murmur2(key)


@given(st.lists(st.tuples(st.none() | st.binary(max_size=5), st.integers(1, 9000)), max_size=60), st.integers(1, 9))
def test_sticky(records: list[tuple[bytes | None, int]], partitions: int) -> None:
    """Records without a key share a partition until a batch is full; keys go their own way and fill nothing."""
    case()
    chosen = random.Random(5)
    sticky: Partitioner = StickyPartitioner(partitions, random.Random(5).randrange)
    current, filled = chosen.randrange(partitions), 0
    for key, size in records:
        got = sticky.partition(key, size)
        if key is not None:
            assert got == partition_for_key(key, partitions)
            continue
        assert got == current
        filled += size
        if filled >= 16384:
            current, filled = chosen.randrange(partitions), 0


def test_round_robin() -> None:
    robin: Partitioner = RoundRobinPartitioner(3)
    assert [robin.partition(key, 1) for key in (None, b"k", b"k", None, b"k")] == [0, 1, 2, 0, 1]
