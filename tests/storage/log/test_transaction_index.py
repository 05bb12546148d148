"""The index of aborted transactions, by what readers find in it."""

from __future__ import annotations

from seglog.storage.log.transaction_index import AbortedTxn, TxnIndex
from tests.kit.memory_fs import MemoryFs


def test_reader_finds_a_transaction_after_one_with_a_stable_offset_far_past_its_marker() -> None:
    """Followers of Kafka write such stable offsets: producer 8 begins at 6, after both."""
    index = TxnIndex(MemoryFs(), "/0.txnindex", 0)
    first, second = AbortedTxn(7, 0, 2, 6), AbortedTxn(7, 3, 5, 6)
    index.append(first)
    index.append(second)
    assert index.collect(3, 6) == ([second], True)
    assert index.collect(0, 3) == ([first], True)
    assert index.collect(0, 9) == ([first, second], False)


def test_reader_goes_on_while_an_older_transaction_is_open() -> None:
    index = TxnIndex(MemoryFs(), "/0.txnindex", 0)
    inner, outer = AbortedTxn(8, 1, 2, 0), AbortedTxn(7, 0, 5, 6)
    index.append(inner)
    index.append(outer)
    assert index.collect(1, 3) == ([inner, outer], True)
