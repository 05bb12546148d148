"""Records of transactions against those of a Kafka 4.4, and round trips of all others."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from seglog.coordinators.transactions.log_records import decode, encode_key, encode_value
from seglog.coordinators.transactions.transaction import Transaction, TransactionState
from seglog.core.errors import CorruptRecordError, UnsupportedFormatError
from seglog.core.types import TopicPartition
from seglog.storage.directory.log_dir import LogDir
from tests import golden
from tests.cases import case

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TOPICS = TEXTS | st.just("t" * 200)
PARTITIONS = st.frozensets(st.builds(TopicPartition, TOPICS, INT32), max_size=8) | st.integers(120, 300).map(
    lambda count: frozenset(TopicPartition("t", number) for number in range(count))
)
TRANSACTIONS = st.builds(
    Transaction,
    TEXTS,
    INT64,
    INT16,
    INT32,
    INT64,
    st.sampled_from(TransactionState),
    PARTITIONS,
    INT64,
    previous_producer_id=INT64,
    next_producer_id=INT64,
    last_epoch=st.just(-1),
    version=st.integers(0, 2),
)


def test_encodes_all_records_of_kafka_to_the_same_bytes(tmp_path_factory: pytest.TempPathFactory) -> None:
    root = golden.unpack(tmp_path_factory.mktemp("golden"), "4.4.0")
    states: set[TransactionState] = set()
    with LogDir.open(golden.log_dir(root)) as opened:
        for record in opened.logs[TopicPartition("__transaction_state", 0)].records():
            assert record.key is not None
            decoded = decode(record.key, record.value)
            assert decoded is not None
            transactional_id, transaction = decoded
            assert encode_key(transactional_id) == record.key
            assert transaction is not None
            assert encode_value(transaction, version=2) == record.value
            states.add(transaction.state)
    assert len(states) == 6


@given(TRANSACTIONS, st.integers(0, 2))
def test_reads_back_what_it_writes(transaction: Transaction, version: int) -> None:
    case()
    kept = transaction
    if transaction.state is TransactionState.EMPTY:
        kept = kept._replace(partitions=frozenset())
    if version < 2:
        kept = kept._replace(previous_producer_id=-1, next_producer_id=-1, version=0)
    key = encode_key(transaction.transactional_id)
    assert decode(key, encode_value(transaction, version)) == (transaction.transactional_id, kept)


def test_a_record_without_a_value_deletes_the_id() -> None:
    assert decode(encode_key("a"), None) == ("a", None)


def test_passes_over_keys_of_other_types() -> None:
    assert decode(b"\x00\x01\x00\x01a", b"") is None


@given(TRANSACTIONS, st.integers(0, 2), st.data())
def test_refuses_a_value_that_is_cut(transaction: Transaction, version: int, data: st.DataObject) -> None:
    case()
    value = encode_value(transaction, version)
    cut = data.draw(st.integers(0, len(value) - 1))
    with pytest.raises(CorruptRecordError):
        decode(encode_key("a"), value[:cut])


@given(st.binary(max_size=80))
@example(b"\x00\x01" + bytes(15) + b"\xff\xff\xff\xff\x0f")
def test_random_values_are_read_or_refused(value: bytes) -> None:
    case()
    with suppress(CorruptRecordError, UnsupportedFormatError):
        decode(encode_key("a"), value)


def test_refuses_a_version_that_kafka_does_not_know() -> None:
    with pytest.raises(UnsupportedFormatError, match="version 2 of a transaction's record"):
        decode(encode_key("a"), b"\x00\x02")
