"""The sink beside that of Spark's own Kafka connector: the same frame, written by both; and Kafka goes on with ours."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Final

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from seglog.storage.offline.findings import has_damage
from seglog.storage.offline.verify import verify
from tests.interop.connector_world import World
from tests.interop.test_log_dir import complaints, consumed, send
from tests.kafka import KafkaNode, tools
from tests.kafka.jars import CURRENT
from tests.spark.write.directories.test_commit_coordinator import end

pytestmark = pytest.mark.xdist_group("connector")

ROWS: Final = """
    SELECT IF(id % 10 = 0, NULL, CAST(CAST(id % 37 AS STRING) AS {key})) AS key,
           IF(id % 11 = 0, NULL, CAST(CONCAT('value ', id) AS {value})) AS value,
           IF(id % 10 = 0, CAST(id / 10 % 3 AS INT), NULL) AS partition,
           IF(id % 3 = 0, array(named_struct('key', 'h', 'value', CAST(CAST(id AS STRING) AS BINARY)),
                                named_struct('key', '', 'value', CAST(NULL AS BINARY))), array()) AS headers,
           id AS not_looked_at
    FROM (SELECT CAST(id AS INT) AS id FROM range(0, 600, 1, {tasks}))
"""


def by_both(world: World, frame: DataFrame, topic: str, path: Path) -> None:
    """Written to a topic of the broker's, and to one of the same name in a log directory of ours."""
    theirs = frame.write.format("kafka").option("kafka.bootstrap.servers", world.node.bootstrap)
    theirs.option("topic", topic).mode("append").save()
    ours = frame.write.format("seglog").option("topic", topic).option("numPartitions", 3)
    ours.mode("append").save(str(path))
    end(path, signal.SIGTERM)


@pytest.mark.parametrize(("key", "value"), [("STRING", "BINARY"), ("BINARY", "STRING")])
def test_rows_go_where_the_connector_sends_them(world: World, tmp_path: Path, key: str, value: str) -> None:
    topic = f"sink-{key}"
    world.create(topic, 3)
    by_both(world, world.spark.sql(ROWS.format(key=key, value=value, tasks=1)), topic, tmp_path / "log")
    options = {"subscribe": topic, "includeHeaders": "true"}
    theirs = world.read("kafka", options).rows
    world.spark.catalog.clearCache()
    frame = world.spark.read.format("seglog").options(**options).load(str(tmp_path / "log"))
    columns = ["key", "value", "topic", "partition", "offset", "timestampType", "headers"]
    ours = sorted((tuple(row) for row in frame.select(*columns).collect()), key=lambda row: (row[3], row[4]))
    assert ours == [row[:-1] for row in theirs]
    assert len(ours) == 600


@pytest.mark.parametrize(
    ("query", "options"),
    [
        ("SELECT 'v' AS value", {}),
        ("SELECT 'k' AS key", {"topic": "t"}),
        ("SELECT 1 AS value", {"topic": "t"}),
        ("SELECT 'v' AS value, 1 AS key", {"topic": "t"}),
        ("SELECT 'v' AS value, 1 AS topic", {}),
        ("SELECT 'v' AS value, CAST(NULL AS STRING) AS topic", {}),
        ("SELECT 'v' AS value, 'one' AS partition", {"topic": "t"}),
        ("SELECT 'v' AS value, CAST(1 AS BIGINT) AS partition", {"topic": "t"}),
        ("SELECT 'v' AS value, map('a', 'b') AS headers", {"topic": "t"}),
        ("SELECT 'v' AS value, -1 AS partition", {"topic": "t"}),
    ],
)
def test_rows_that_the_connector_refuses_are_refused(
    world: World, tmp_path: Path, query: str, options: dict[str, str]
) -> None:
    frame = world.spark.sql(query)
    theirs = frame.write.format("kafka").option("kafka.bootstrap.servers", world.node.bootstrap).options(**options)
    with pytest.raises(Exception, match=r"(?i)topic|attribute|partition"):  # some are py4j's
        theirs.mode("append").save()
    with pytest.raises(PySparkException, match=r"column|partition|topic"):
        frame.write.format("seglog").options(**options).mode("append").save(str(tmp_path / "log"))


def test_kafka_continues_a_log_that_spark_wrote(world: World, own_kafka: KafkaNode) -> None:
    small = ["--config", "segment.bytes=1048576"]
    tools.topics(own_kafka.bootstrap, "--create", "--topic", "t", "--partitions", "2", *small)
    before, behind = [b"before %d" % number for number in range(20)], [b"behind %d" % number for number in range(20)]
    send(own_kafka.bootstrap, "t", 0, before)
    own_kafka.stop()
    frame = world.spark.sql(
        """SELECT CAST(id % 2 AS INT) AS partition, CAST(CONCAT(id, ' ', repeat(sha2(CAST(id AS STRING), 512), 8)) AS
        BINARY) AS value FROM range(0, 8000, 1, 3)"""
    )
    writer = frame.write.format("seglog").options(**{"topic": "t", "compression.type": "lz4"}).mode("append")
    with pytest.raises(PySparkException, match="made by a Kafka broker"):
        writer.save(str(own_kafka.log_dir))
    writer.option("allowForeign", "true").save(str(own_kafka.log_dir))
    end(own_kafka.log_dir, signal.SIGTERM)
    values = [bytes(row.value) for row in frame.select("value").collect()]
    logs = sorted(own_kafka.log_dir.glob("t-*/*.log"))
    assert "isvalid: false" not in tools.dump_log_segments(CURRENT, logs, "--deep-iteration")
    assert not has_damage(verify([str(own_kafka.log_dir)]).findings)
    own_kafka.start()
    send(own_kafka.bootstrap, "t", 0, behind)
    assert consumed(own_kafka, "t-0", "t-1") == {"t-0": [*before, *values[::2], *behind], "t-1": values[1::2]}
    assert complaints(own_kafka) == []
