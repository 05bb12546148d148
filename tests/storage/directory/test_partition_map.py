"""The mapping of partitions, compared with a dictionary."""

from __future__ import annotations

from random import Random

from seglog.core.types import TopicPartition
from seglog.storage.directory.partition_map import PartitionMap
from tests.cases import case


def test_it_is_a_dictionary_that_knows_the_partitions_of_each_topic() -> None:
    for seed in range(50):
        case()
        rng = Random(seed)
        found: PartitionMap[int] = PartitionMap()
        model: dict[TopicPartition, int] = {}
        for step in range(1, 60):
            partition = TopicPartition(rng.choice("abc"), rng.randrange(4))
            if rng.random() < 0.6:
                found[partition] = model[partition] = step
            elif rng.random() < 0.5:
                assert found.take(partition) == model.pop(partition, None)
            elif partition in model:
                del found[partition], model[partition]
            assert found == model
            assert found.topics() == {one.topic for one in model}
            for topic in "abc":
                assert sorted(found.of(topic)) == sorted(one for one in model if one.topic == topic)
                assert found.has(topic) == bool(found.of(topic))
        again: PartitionMap[int] = PartitionMap()
        again.put_all(model)
        assert again == found
        assert all(sorted(again.of(topic)) == sorted(found.of(topic)) for topic in "abc")
