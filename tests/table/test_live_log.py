"""A table of a directory that a broker writes, rolls and deletes meanwhile: each record once, none missing."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

from confluent_kafka import TopicPartition

from seglog.table.building import update_table
from seglog.table.iceberg.log_table import LogTable
from seglog.testing import Broker
from tests.kit.topics import admin_client, write_all
from tests.table.tables import stored

RECORDS: Final = 1500
PER_ROUND: Final = 300
TOPIC: Final = {"internal.segment.bytes": "4096", "index.interval.bytes": "1000", "retention.ms": "-1"}
SETTINGS: Final = {"log.retention.check.interval.ms": "100", "log.initial.task.delay.ms": "100"}


def _delete_what_the_table_has(bootstrap: str, table: Path) -> None:
    with LogTable.open(table) as opened:
        positions = opened.positions()
    if positions is not None:
        below = [TopicPartition("t", number, at.upto) for number, at in positions.partitions.items()]
        admin = admin_client(bootstrap)  # its futures end with it
        for done in admin.delete_records(below).values():
            done.result(60)


def test_follows_a_broker_that_writes_and_deletes(tmp_path: Path) -> None:
    table = tmp_path / "warehouse" / "t"
    values = [f"{number:06d}" for number in range(RECORDS)]
    with Broker(settings=SETTINGS, process=True) as broker:
        broker.create_topic("t", 1, TOPIC)
        for at in range(0, RECORDS, PER_ROUND):
            part = values[at : at + PER_ROUND]
            writing = threading.Thread(target=write_all, args=(broker.bootstrap, "t", part), kwargs={"batch": 30})
            writing.start()
            while writing.is_alive():
                update_table(broker.data_dir, table, topic="t")
            writing.join()
            update_table(broker.data_dir, table, topic="t")
            _delete_what_the_table_has(broker.bootstrap, table)
    rows = stored(table)
    assert sorted(value.decode() for value in rows.column("value").to_pylist()) == values
    assert rows.column("offset").to_pylist() == list(range(RECORDS))
