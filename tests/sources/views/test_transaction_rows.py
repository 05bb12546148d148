"""The view of transactions, held to the states in which Kafka left transactional ids, and to its decoder's text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pyspark_seglog import DefaultSource
from seglog.client.kept_connections import close_all
from seglog.core.errors import InvalidConfigError
from seglog.sources.views.transaction_rows import describe
from seglog.testing import Broker
from tests import golden
from tests.kafka.jars import CURRENT
from tests.sources.views.view_reading import read, rows_of


def test_each_transactional_id_has_the_state_in_which_kafka_left_it(tmp_path: Path) -> None:
    root = golden.unpack_transactions(tmp_path)
    left, _ = golden.left_transactions(root)
    rows = {row["transactionalId"]: row for row in read("transactions", golden.log_dir(root))}
    assert {one.id for one in left} <= set(rows)
    for one in left:
        row = rows[one.id]
        found = (row["state"], row["producerId"], row["producerEpoch"], row["reason"])
        assert found == (one.state, one.producer_id, one.epoch, None)
        is_open = one.state in ("Ongoing", "PrepareCommit", "PrepareAbort")
        assert row["transactionVersion"] == one.version or not is_open  # written once a transaction has begun
        assert (f"{one.topic}-0" in row["partitions"]) == is_open
        assert row["updateTimestamp"] >= (row["startTimestamp"] or row["updateTimestamp"])
    assert len({one.state for one in left}) > 3


def test_a_broker_shows_what_its_directory_has(tmp_path: Path) -> None:
    directory = golden.log_dir(golden.unpack(tmp_path, CURRENT))
    wanted = read("transactions", directory, {"until": "logEnd"})
    (text,) = (tmp_path / directory.parent.name / "expected").glob("__transaction_state-*/*.deep.txt")
    ids = set(re.findall(r'"transactionalId":"([^"]+)"', text.read_text()))
    assert {row["transactionalId"] for row in wanted} == ids
    keeps = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "86400000", "log.retention.ms": "-1"}
    with Broker(copy_of=directory, settings=keeps) as broker:
        source = DefaultSource({"kafka.bootstrap.servers": broker.bootstrap, "view": "transactions"})
        assert rows_of(source) == wanted
    close_all()


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (
            b"\0\0\0\1a",
            b"\0\7",
            "version 7 of a transaction's record (TransactionLogValue) is not supported: the latest is 1",
        ),
        (b"\0\0\0\1a", b"", "a transaction's record cannot be read: "),
        (b"\0\5", b"", "a record of another type"),
    ],
)
def test_a_record_that_cannot_be_read_says_why(key: bytes, value: bytes, reason: str) -> None:
    row = describe(key, value)
    assert set(row) == {"reason"}
    assert row["reason"].startswith(reason)


def test_other_topics_columns_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="view transactions has no column 'group'"):
        DefaultSource({"path": str(tmp_path), "view": "transactions", "columns": "group"}).schema()
