"""Debezium on Kafka Connect with exactly-once support: every row of a PostgreSQL table once, though the worker dies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from tests.ecosystem.connect import ConnectWorker
from tests.ecosystem.places import Place
from tests.ecosystem.postgres import Postgres
from tests.ecosystem.results import Report
from tests.ecosystem.tails import Tail

_ROWS: Final = 20_000
_SNAPSHOT: Final = 5_000
_TRANSACTION: Final = 500
_TOPIC: Final = "db.public.orders"
_JSON: Final = "org.apache.kafka.connect.json.JsonConverter"


def _inserts(first: int, last: int) -> list[str]:
    return [
        f"insert into orders select n, 'order ' || n from generate_series({start}, {start + _TRANSACTION - 1}) n"
        for start in range(first, last, _TRANSACTION)
    ]


def test_debezium_captures_every_row_once(place: Place, tmp_path: Path, report: Report) -> None:
    report.of("Debezium", "3.6.1, Connect 4.3.0", "PostgreSQL, exactly once; worker killed")
    place.create(_TOPIC, partitions=1)
    with (
        Postgres(tmp_path) as database,
        ConnectWorker(place, tmp_path, "debezium") as worker,
        Tail(place.bootstrap, _TOPIC) as tail,
    ):
        database.execute("create table orders (id bigint primary key, line text)", *_inserts(0, _SNAPSHOT))
        worker.put(
            "source",
            {
                "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
                "tasks.max": "1",
                "plugin.name": "pgoutput",
                "database.hostname": database.host,
                "database.port": str(database.port),
                "database.user": database.user,
                "database.password": "",
                "database.dbname": "postgres",
                "topic.prefix": "db",
                "table.include.list": "public.orders",
                "max.batch.size": "200",
                "max.queue.size": "400",
                "exactly.once.support": "required",
                "transforms": "unwrap",
                "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
                "key.converter": _JSON,
                "value.converter": _JSON,
                "key.converter.schemas.enable": "false",
                "value.converter.schemas.enable": "false",
            },
        )
        tail.read_until(lambda records: len(records) >= _SNAPSHOT)
        place.disturb()
        database.execute(*_inserts(_SNAPSHOT, 15_000))
        tail.read_until(lambda records: len(records) > _SNAPSHOT)
        worker.kill()
        database.execute(*_inserts(15_000, _ROWS))
        worker.start()
        worker.wait_running("source")
        tail.read_until(lambda records: len(records) >= _ROWS, 180)
        records = tail.read_on(3)
    report.counted(_ROWS, len(records))
    assert [json.loads(one.value)["id"] for one in records] == list(range(_ROWS))
