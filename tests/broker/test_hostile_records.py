"""Records that nobody's library makes, sent to a server. What a real Kafka says of them: `tests.interop`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from seglog.protocol.apis import ApiKey
from tests.broker.broker_thread import Wire
from tests.broker.hostile_records import MALFORMED, bomb, sequenced, sequences
from tests.broker.served_broker import MEGABYTE, Other, ServedBroker

_numbers = itertools.count()
INVALID_RECORD = 87
LOOKED_AT = [{"seglog.validate.records": "true"}, {"cleanup.policy": "compact"}]
"""Configurations with which records are decoded."""
TAKEN = ("a header that is not UTF-8",)
"""By Kafka too."""
CODECS = {"lz4": 3, "zstd": 4}
"""The worst ones; all of them: `tests.records.test_compression_hostile`."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    with ServedBroker(tmp_path_factory.mktemp("hostile")) as running:
        yield running


@pytest.fixture
def wire(served: ServedBroker) -> Iterator[Wire]:
    with Wire(served.bootstrap) as connection:
        yield connection


def make_topic(wire: Wire, config: dict[str, str]) -> str:
    return wire.create_topic(f"hostile-{next(_numbers)}", config=config)


def produce(wire: Wire, topic: str, records: bytes) -> int:
    data = [{"name": topic, "partition_data": [{"index": 0, "records": records}]}]
    answer = wire.ask(ApiKey.PRODUCE, 9, acks=-1, timeout=30_000, topic_data=data)
    return int(answer.responses[0].partition_responses[0].error_code)


@pytest.mark.parametrize("config", LOOKED_AT, ids=lambda config: next(iter(config)))
def test_malformed_records_are_refused_where_they_are_looked_at(
    served: ServedBroker, wire: Wire, config: dict[str, str]
) -> None:
    topic = make_topic(wire, config)
    found = {name: produce(wire, topic, data) for name, data in MALFORMED.items() if name not in TAKEN}
    assert set(found.values()) == {INVALID_RECORD}, found
    served.check_quiet()


def test_malformed_records_are_stored_where_they_are_not(served: ServedBroker, wire: Wire) -> None:
    """docs/differences.md: a batch is taken by its header and CRC. Whoever reads it gets it as it was sent."""
    topic = make_topic(wire, {})
    for offset, (name, data) in enumerate(MALFORMED.items()):
        assert produce(wire, topic, data) in (0, INVALID_RECORD), name
        assert offset >= 0
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": MEGABYTE}
    topics = [{"topic": topic, "partitions": [partition]}]
    answer = wire.ask(ApiKey.FETCH, 11, replica_id=-1, max_wait=0, min_bytes=0, max_bytes=MEGABYTE, topics=topics)
    assert answer.responses[0].partitions[0].error_code == 0
    # Looking for a time decodes, too.
    asked = [{"name": topic, "partitions": [{"partition_index": 0, "timestamp": 1, "current_leader_epoch": -1}]}]
    wire.ask(ApiKey.LIST_OFFSETS, 5, replica_id=-1, topics=asked)
    served.check_quiet()


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_costs_little_memory_for_long(served: ServedBroker, codec: str) -> None:
    """70 MB of zeros in one record, more than a broker decompresses: 2 KB of zstd."""
    data = bomb(CODECS[codec])
    other = Other(served)
    with Wire(served.bootstrap) as wire:
        topics = [make_topic(wire, config) for config in ({}, *LOOKED_AT)]
        memory = served.memory
        with other.asking():
            codes = [produce(wire, topic, data) for topic in topics]
            other.wait_for(10)
    assert codes[0] == 0
    assert 0 not in codes[1:]
    assert served.memory - memory < 50 * MEGABYTE
    served.check_quiet()


def test_sequences_that_overlap(wire: Wire) -> None:
    topic = make_topic(wire, {})
    codes = [produce(wire, topic, sequenced(77, base, count)) for base, count, _ in sequences()]
    assert codes == [code for _, _, code in sequences()]
