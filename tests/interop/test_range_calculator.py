"""How ranges of offsets are divided, beside the class of Spark's own connector that does it."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from seglog.core.types import TopicPartition
from seglog.sources.ranges import OffsetRange, PartitionRange, divide
from tests.cases import case
from tests.interop.connector_world import World

pytestmark = pytest.mark.xdist_group("connector")


def by_connector(
    jvm: Any, shares: list[PartitionRange], wanted: int | None, most: int | None
) -> list[tuple[int, int, int]]:
    def sequence(items: list[Any]) -> Any:
        made = jvm.java.util.ArrayList()
        for item in items:
            made.add(item)
        return jvm.scala.jdk.javaapi.CollectionConverters.asScala(made).toSeq()

    kafka = jvm.org.apache.spark.sql.kafka010
    options = jvm.java.util.HashMap()
    for name, value in (("minpartitions", wanted), ("maxrecordsperpartition", most)):
        if value is not None:
            options.put(name, str(value))
    calculator = kafka.KafkaOffsetRangeCalculator.apply(jvm.org.apache.spark.sql.util.CaseInsensitiveStringMap(options))
    ranges = [
        kafka.KafkaOffsetRange(
            jvm.org.apache.kafka.common.TopicPartition(*share.topic_partition), *share.offsets, jvm.scala.Option.empty()
        )
        for share in shares
    ]
    found = calculator.getRanges(sequence(ranges), sequence([]))
    each = [found.apply(number) for number in range(found.size())]
    return [(each.partition(), each.fromOffset(), each.untilOffset()) for each in each]


def test_the_same_ranges(world: World) -> None:
    random = Random(4)
    for _ in range(150):
        case()
        shares = []
        for number in range(random.randint(1, 6)):
            start = random.randint(0, 50)
            size = random.choice([0, 1, 2, random.randint(0, 30), random.randint(0, 2000)])
            shares.append(PartitionRange(TopicPartition("t", number), OffsetRange(start, start + size)))
        wanted = random.choice([None, random.randint(1, 30)])
        most = random.choice([None, random.randint(1, 300)])
        ours = divide(shares, min_partitions=wanted, max_records=most)
        expected = by_connector(world.spark._jvm, shares, wanted, most)
        assert [(share.topic_partition.partition, *share.offsets) for share in ours] == expected
