"""Generated sequences of requests to a real Kafka and to ours: the same answers but for ids and times, and the same
batches give the same files.

What is left out or looked at in another way is named where it is: `tests.sequences.both.FREE` (what each broker makes
up), `tests.sequences.logs.OWN_BYTES` and `ANSWERED_OTHERWISE`, and the comments in `tests.sequences.groups`; the
reasons are in docs/differences.md. Every sequence is made of one number; with the hypothesis profile `long` there are
more of them, other ones each time.
"""

from __future__ import annotations

import itertools
import random
from typing import Final

import pytest

from seglog.protocol.apis import ApiKey
from tests.broker.broker_thread import RunningNode
from tests.cases import case, is_long
from tests.kafka import KafkaNode
from tests.sequences.batches import DAMAGES
from tests.sequences.both import Both, Ref
from tests.sequences.files import differences
from tests.sequences.groups import GroupWorld
from tests.sequences.logs import ANSWERED_OTHERWISE, LogWorld
from tests.sequences.offsets_topic import records

_LONG: Final = is_long()
_numbers = itertools.count()


def seeds(count: int) -> list[int]:
    """The first ones, or in a long run a hundred times as many of all that there are."""
    return [random.SystemRandom().randrange(1 << 40) for _ in range(100 * count)] if _LONG else list(range(count))


@pytest.fixture
def tag() -> str:
    return f"sequence-{next(_numbers)}"


def log_differences(world: LogWorld, kafka: KafkaNode, ours: RunningNode) -> list[str]:
    ours.flush()  # until then entries of an active segment's indexes wait in memory (docs/differences.md)
    return [
        f"{name}-{partition}: {file}"
        for (name, partition), start in world.starts().items()
        for file in differences(kafka.log_dir / f"{name}-{partition}", ours.path / f"{name}-{partition}", start)
    ]


@pytest.mark.parametrize("seed", seeds(4))
def test_writing_and_reading(both: Both, kafka: KafkaNode, ours: RunningNode, tag: str, seed: int) -> None:
    world = LogWorld(both, random.Random(seed), tag)
    for name in world.names:  # a log without any records takes fewer sequences than Kafka's (docs/differences.md)
        for number in range(2):
            world.send(9, {name: {number: world.batches.plain(keyed=True, codec=0)}})
    steps = 120
    for _ in range(steps):
        world.step()
    case(steps)
    assert log_differences(world, kafka, ours) == []


def test_every_kind_of_bad_batch_in_every_kind_of_topic(
    both: Both, kafka: KafkaNode, ours: RunningNode, tag: str
) -> None:
    world = LogWorld(both, random.Random(0), tag)
    for name in world.names:
        for kind, make in DAMAGES.items():
            if kind not in ANSWERED_OTHERWISE:
                for version in (6, 13):
                    world.send(version, {name: {0: make(world.batches)}})
                    case()
    assert log_differences(world, kafka, ours) == []


@pytest.mark.parametrize("kind", sorted(ANSWERED_OTHERWISE))
def test_unknown_codec_gets_error_76_where_kafka_answers_minus_1(both: Both, tag: str, kind: str) -> None:
    """Kafka throws what it does not expect itself; ours says what is wrong (docs/differences.md)."""
    world = LogWorld(both, random.Random(0), tag, ["plain"])
    records = DAMAGES[kind](world.batches)
    topic_data = [{"name": f"{tag}-plain", "partition_data": [{"index": 0, "records": records}]}]
    contents = {"acks": -1, "timeout": 1000, "transactional_id": None, "topic_data": topic_data}
    codes = []
    for side in both.sides:
        answer = side.wire().ask(ApiKey.PRODUCE, 9, **contents)
        codes.append(answer.responses[0].partition_responses[0].error_code)
    assert codes == [-1, 76]


def test_partitions_and_topics_that_are_named_twice(both: Both, kafka: KafkaNode, ours: RunningNode, tag: str) -> None:
    """The last one counts."""
    world = LogWorld(both, random.Random(1), tag, ["plain"])
    for version in range(3, 14):
        parts = [{"index": 0, "records": world.batches.plain(codec=0)} for _ in range(2)]
        topic = world.called(ApiKey.PRODUCE, version, f"{tag}-plain")
        topics = [{**topic, "partition_data": parts}, {**topic, "partition_data": parts[:1]}][: 1 + version % 2]
        both.ask(ApiKey.PRODUCE, version, acks=1, timeout=1000, transactional_id=None, topic_data=topics)
        case()
    assert log_differences(world, kafka, ours) == []


@pytest.fixture(scope="module")
def group_topic(kafka: KafkaNode, ours: RunningNode) -> str:
    name = f"groups-{next(_numbers)}"
    opened = Both(kafka.bootstrap, ours.bootstrap)
    topics = [{"name": name, "num_partitions": 2, "replication_factor": 1}]
    opened.ask(ApiKey.CREATE_TOPICS, 4, topics=topics, timeout=30_000, validate_only=False)
    opened.close()
    return name


def group_world(both: Both, seed: int, tag: str, topic: str) -> GroupWorld:
    both.learn(
        Ref(topic), both.ask(ApiKey.METADATA, eventually=True, topics=[{"name": topic}]), "topics", 0, "topic_id"
    )
    return GroupWorld(both, random.Random(seed), tag, topic)


@pytest.mark.parametrize("seed", seeds(8))
def test_groups(both: Both, tag: str, group_topic: str, seed: int) -> None:
    world = group_world(both, seed, tag, group_topic)
    steps = 120
    for _ in range(steps):
        world.step()
    world.close()
    case(steps)


def _commit_behind_all(both: Both, tag: str, topic: str) -> None:
    """Kafka tells of a group as it is before the log has it; of a commit only when the log has it, and all before."""
    partitions = [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}]
    answer = both.same(
        ApiKey.OFFSET_COMMIT,
        8,
        group_id=f"{tag}-behind",
        generation_id=-1,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[{"name": topic, "partitions": partitions}],
    )
    assert [one["error_code"] for one in answer["topics"][0]["partitions"]] == [0]


def test_group_records_equal_kafkas(
    both: Both, kafka: KafkaNode, ours: RunningNode, tag: str, group_topic: str
) -> None:
    """The records of commits and of groups, as Kafka's own decoder prints them."""
    groups: list[str] = []
    for seed in range(1000, 1003):
        world = group_world(both, seed, f"{tag}-{seed}", group_topic)
        for _ in range(100):
            world.step()
        world.close()
        world.settle()
        groups += world.groups
    _commit_behind_all(both, tag, group_topic)
    real, mine = (
        records(side, log_dir, groups) for side, log_dir in ((both.real, kafka.log_dir), (both.ours, ours.path))
    )
    both.compare(real, mine)
    kinds = [key["type"] for found in mine.values() for key, _ in found]
    assert set(kinds) == {"1", "2"}
    assert len(kinds) > 30
