"""The newest values by Spark's shuffle are those of the view, and of a dictionary."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from seglog.core.errors import InvalidConfigError
from seglog.core.types import TopicPartition
from seglog.records.record import NewRecord
from seglog.spark import latest, split_keys
from tests.kafka.records import ConsumedRecord
from tests.sources.latest.latest_reading import Newest, by_dictionary
from tests.spark.logs import write_partition

pytestmark = pytest.mark.xdist_group("spark")


def random_topic(path: Path) -> list[ConsumedRecord]:
    """Two partitions of topic ``t``, in which a third of the keys are the same."""
    rng = random.Random(0)
    written: list[ConsumedRecord] = []
    for partition in range(2):
        batches, offset = [], 0
        for _ in range(40):
            batch = []
            for _ in range(rng.randrange(1, 20)):
                key = (
                    b"both-%d" % rng.randrange(20) if rng.random() < 0.3 else b"%d/%d" % (partition, rng.randrange(40))
                )
                value = None if rng.random() < 0.2 else b'{"n": %d}' % offset
                batch.append(NewRecord(value, key, 1_000 + offset))
                written.append(
                    ConsumedRecord(
                        topic="t",
                        partition=partition,
                        offset=offset,
                        timestamp=1_000 + offset,
                        timestamp_type="CreateTime",
                        key=key,
                        value=value,
                        headers=(),
                        leader_epoch=None,
                    )
                )
                offset += 1
            batches.append(batch)
        write_partition(path / f"t-{partition}", batches)
    return written


def newest(frame: DataFrame) -> Newest:
    found: Newest = {}
    for row in frame.collect():
        place = TopicPartition(row["topic"], row["partition"]), bytes(row["key"])
        assert place not in found
        found[place] = row["offset"], bytes(row["value"])
    return found


def test_divided_by_offsets_and_merged_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    records = random_topic(tmp_path)
    wanted = by_dictionary(records)
    options = {"path": str(tmp_path), "minPartitions": "7"}
    view = spark.read.format("seglog").options(**options).option("view", "latest").load()
    assert newest(view) == wanted
    frame = latest(spark, options)
    assert frame.schema == view.schema
    assert newest(frame) == wanted
    (a,) = latest(spark, {**options, "columns": "value", "keyEquals": "both-3", "assign": '{"t": [1]}'}).collect()
    assert bytes(a["value"]) == wanted[TopicPartition("t", 1), b"both-3"][1]
    typed = latest(spark, {**options, "valueFormat": "json", "valueSchema": "n bigint", "columns": "offset,value"})
    assert sorted((row["offset"], row["value"]["n"]) for row in typed.collect()) == sorted(
        (offset, offset) for offset, _ in wanted.values()
    )
    by_key: dict[bytes, list[int]] = {}
    for partition, key in sorted(wanted):
        by_key.setdefault(key, []).append(partition.partition)
    split = {bytes(row["key"]): row["partitions"] for row in split_keys(view).collect()}
    assert split == {key: partitions for key, partitions in by_key.items() if len(partitions) > 1}
    assert len(split) > 5


def test_options_that_the_shuffle_cannot_keep_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match=r"option view: latest\(\) sets its own view"):
        latest(spark, {"path": str(tmp_path), "View": "latest"})
    with pytest.raises(InvalidConfigError, match="option keyFormat: the view latest-parts has keys as bytes"):
        latest(spark, {"path": str(tmp_path), "keyFormat": "json", "keySchema": "n int"})
