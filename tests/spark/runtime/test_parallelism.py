"""The number of cores, as a planning process finds it: from the driver's command line, since Spark does not tell it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from seglog.records.record import NewRecord
from seglog.spark.runtime.parallelism import parallelism_of, settings_of
from tests.spark.logs import write_partition


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("java SparkSubmit --conf spark.master=local[7] --conf spark.app.name=x pyspark-shell", 7),
        ("java SparkSubmit --master local app.py", 1),
        ("java SparkSubmit --master local[*] app.py", 16),
        ("java SparkSubmit --master local[3,2] app.py", 3),
        ("java SparkSubmit --master local-cluster[2,3,1024] app.py", 6),
        ("java SparkSubmit --master spark://h:7077 --total-executor-cores 24 app.py", 24),
        ("java SparkSubmit --master yarn --num-executors 10 --executor-cores 4 app.py", 40),
        ("java -Dspark.executor.instances=5 SparkSubmit --master k8s://h app.py", 5),
        ("java SparkSubmit --master yarn -c spark.dynamicAllocation.maxExecutors=9 --executor-cores 2 app.py", 18),
        ("java SparkSubmit --master local[2] --conf spark.default.parallelism=50 app.py", 50),
        ("java SparkSubmit --master spark://h:7077 app.py", None),
        ("java SparkSubmit --master local[0] --conf spark.cores.max=-1 app.py", None),
        ("/usr/bin/python -m pytest", None),
        ("", None),
    ],
)
def test_reads_the_drivers_command_line(line: str, expected: int | None) -> None:
    assert parallelism_of(settings_of(line.split()), 16) == expected


@pytest.mark.xdist_group("spark")
def test_three_hundred_partitions_of_one_record_take_eight_tasks(spark: SparkSession, tmp_path: Path) -> None:
    for partition in range(300):
        write_partition(tmp_path / f"t-{partition}", [[NewRecord(b"%d" % partition)]])
    frame = spark.read.format("seglog").load(str(tmp_path))
    assert frame.rdd.getNumPartitions() == 4 * spark.sparkContext.defaultParallelism
    assert sorted((row.partition, int(row.value)) for row in frame.collect()) == [(at, at) for at in range(300)]
    alone = spark.read.format("seglog").option("minPartitions", "300").load(str(tmp_path))
    assert alone.rdd.getNumPartitions() == 300
