"""The steps that make the golden set on a running Kafka: one function per step, all records from `content`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from seglog.storage.formats.paths import WITNESS
from tests.golden.content import batches, keyed, plain
from tests.golden.recipes import CODECS, OLD_CODECS, Topic
from tests.kafka.records import Recipe, Record
from tests.kit.waiting import SECONDS, wait_until

__all__ = [
    "commit_offsets",
    "create_topics",
    "first_recipe",
    "leave_open",
    "old_recipes",
    "second_recipe",
    "set_topic_config",
    "wait_cleaned",
    "wait_deleted",
]

_PLAIN = {"enable.idempotence": "false"}


def create_topics(bootstrap: str, topics: Iterable[Topic]) -> None:
    """Create all; raises KafkaException when Kafka refuses one."""
    wanted = [NewTopic(t.name, t.partitions, 1, config=dict(t.config)) for t in topics]
    admin = AdminClient({"bootstrap.servers": bootstrap})  # held: its futures fail when it is collected
    for done in admin.create_topics(wanted).values():
        done.result(SECONDS)


def set_topic_config(bootstrap: str, topic: str, key: str, value: str) -> None:
    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(SECONDS)


def first_recipe() -> Recipe:
    """Everything before the restart."""
    recipe = Recipe()
    for number, codec in enumerate(CODECS):
        recipe.producer(codec, {**_PLAIN, "compression.type": codec})
        for batch in batches(number, 30):
            recipe.batch(codec, f"codec-{codec}", batch)
    for batch in plain(10, 8, headers=True):
        recipe.batch("none", "append-time", batch)
        recipe.batch("gzip", "append-time", batch)
        recipe.batch("gzip", "recompressed", batch)
    for partition in (0, 1):
        for batch in plain(20 + partition, 6):
            recipe.batch("snappy", "a.b-c_d", batch, partition=partition)
    _fill(recipe, "rolled", plain(30, 60))
    _fill(recipe, "rolled-by-time", plain(31, 12, step_ms=17_000))
    _fill(recipe, "deleted-prefix", plain(32, 40))
    _fill(recipe, "deleted-part", plain(33, 5))
    _fill(recipe, "deleted-all", plain(34, 5))
    _fill(recipe, "epochs", plain(35, 4))
    _sequences(recipe)
    _transactions(recipe)
    _to_be_cleaned(recipe, 0)
    return recipe


def second_recipe() -> Recipe:
    """After the restart: a new leader epoch everywhere, and dirty segments for a second cleaning."""
    recipe = Recipe()
    recipe.producer("none", _PLAIN)
    recipe.producer("lz4", {**_PLAIN, "compression.type": "lz4"})
    recipe.producer("again", {"compression.type": "zstd"})
    _fill(recipe, "epochs", plain(36, 3))
    for batch in plain(44, 3):
        recipe.batch("again", "idempotent", batch)
    _to_be_cleaned(recipe, 1)
    return recipe


def leave_open() -> Recipe:
    """A committed transaction, one left open by a producer that vanishes, and a bystander's batch after it."""
    recipe = Recipe()
    recipe.producer("open", {"transactional.id": "golden-open", "transaction.timeout.ms": "600000"})
    recipe.producer("none", _PLAIN)
    first, second, third = plain(50, 3)
    recipe.begin("open")
    recipe.batch("open", "txn-open", first)
    recipe.commit("open")
    recipe.begin("open")
    recipe.batch("open", "txn-open", second)
    recipe.batch("none", "txn-open", third)
    recipe.halt("open")
    return recipe


def old_recipes() -> tuple[Recipe, Mapping[str, Recipe]]:
    """For 2.8.2: the recipe, and one for each further message format that the topic `mixed` is set to."""
    recipe = Recipe()
    for number, codec in enumerate(OLD_CODECS):
        recipe.producer(codec, {**_PLAIN, "compression.type": codec})
        for version in ("v0", "v1"):
            for batch in batches(100 + number, 15, headers=False):
                recipe.batch(codec, f"{version}-{codec}", batch)
        _fill(recipe, "mixed", plain(120 + number, 2), codec)
    recipe.producer("zstd", {**_PLAIN, "compression.type": "zstd"})
    for codec in ("none", "zstd"):
        for batch in batches(110, 15):
            recipe.batch(codec, f"v2-{codec}", batch)
    _fill(recipe, "v1-append-time", plain(111, 4))
    _fill(recipe, "v1-append-time", plain(112, 4), "gzip")
    for version in ("v0", "v1", "v2"):
        _fill(recipe, f"{version}-rolled", plain(113, 25))
        _fill(recipe, f"{version}-rolled", plain(114, 25), "gzip")
    for batch in keyed(115, 30):
        recipe.batch("gzip", "v1-compacted", batch)
    for batch in keyed(116, 10):
        recipe.batch("none", "v1-compacted", batch)
    recipe.producer("t1", {"transactional.id": "golden-t1"})
    recipe.producer("t2", {"transactional.id": "golden-t2"})
    _interleave(recipe, "v2-txn", seed=117, rounds=4)
    more = {}
    for number, version in enumerate(("0.10.0", "2.8")):
        more[version] = Recipe()
        for codec in OLD_CODECS:
            more[version].producer(codec, {**_PLAIN, "compression.type": codec})
            _fill(more[version], "mixed", plain(130 + number, 2), codec)
    return recipe, more


def commit_offsets(bootstrap: str, topic: str) -> None:
    """Real group members of both protocols, a commit with metadata, an overwritten commit, and a deleted group."""
    for protocol in ("classic", "consumer"):
        settings = {"bootstrap.servers": bootstrap, "group.id": f"group-{protocol}", "group.protocol": protocol}
        consumer = Consumer({**settings, "enable.auto.commit": False, "auto.offset.reset": "earliest"})
        try:
            consumer.subscribe([topic])
            seen = 0
            while seen < 10:
                seen += len(consumer.consume(10, timeout=1.0))
            consumer.commit(asynchronous=False)
        finally:
            consumer.close()
    for group in ("standalone", "to-be-deleted"):
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
        try:
            for offset in (1, 4):
                place = TopicPartition(topic, 1, offset, "märk")
                consumer.commit(offsets=[place], asynchronous=False)
        finally:
            consumer.close()
    admin = AdminClient({"bootstrap.servers": bootstrap})
    kept = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("standalone")])
    for done in kept.values():
        if not done.result(SECONDS).topic_partitions:
            raise KafkaException("the committed offsets are not there")
    for deleted in admin.delete_consumer_groups(["to-be-deleted"]).values():
        deleted.result(SECONDS)


def wait_cleaned(log_dir: Path, partitions: Sequence[str]) -> None:
    """Wait until every partition is clean up to its active segment and the replaced files are deleted."""
    wait_until(lambda: all(_cleaned(log_dir, name) for name in partitions), f"{partitions} to be cleaned")


def wait_deleted(partition_dir: Path, below: int) -> None:
    """Until no segment is left that ends at or before `below`."""

    def gone() -> bool:
        bases = sorted(int(path.name[:20]) for path in partition_dir.iterdir() if ".log" in path.name)
        return len(bases) == 1 or bases[1] > below

    wait_until(gone, f"the segments of {partition_dir.name} below {below} to go")


def _cleaned(log_dir: Path, partition: str) -> bool:
    topic, _, number = partition.rpartition("-")
    checkpoint = log_dir / "cleaner-offset-checkpoint"
    lines = checkpoint.read_text().splitlines() if checkpoint.exists() else []
    names = [path.name for path in (log_dir / partition).iterdir()]
    active = max(int(name[:20]) for name in names if name.endswith(".log"))
    settled = not any(name.endswith((".deleted", ".cleaned", ".swap")) for name in names if name != WITNESS)
    return settled and f"{topic} {number} {active}" in lines


def _fill(recipe: Recipe, topic: str, content: Iterable[list[Record]], producer: str = "none") -> None:
    for batch in content:
        recipe.batch(producer, topic, batch)


def _sequences(recipe: Recipe) -> None:
    for name, codec in (("one", "none"), ("two", "lz4")):
        recipe.producer(name, {"compression.type": codec})
    for number, batch in enumerate(plain(40, 12)):
        recipe.batch("one" if number % 3 else "two", "idempotent", batch)
    recipe.close("one")  # opened anew it is another producer id
    for batch in plain(41, 2):
        recipe.batch("one", "idempotent", batch)


def _transactions(recipe: Recipe) -> None:
    recipe.producer("t1", {"transactional.id": "golden-t1"})
    recipe.producer("t2", {"transactional.id": "golden-t2", "compression.type": "gzip"})
    _interleave(recipe, "txn", seed=60, rounds=6)
    _interleave(recipe, "txn-rolled", seed=61, rounds=12)


def _interleave(recipe: Recipe, topic: str, *, seed: int, rounds: int) -> None:
    """Rounds of two transactions that overlap; which commits and which comes first changes from round to round."""
    content = plain(seed, rounds * 4, size=4)
    for number in range(rounds):
        first, second = ("t1", "t2") if number % 2 else ("t2", "t1")
        recipe.begin(first)
        recipe.batch(first, topic, next(content))
        recipe.begin(second)
        recipe.batch(second, topic, next(content))
        recipe.batch("none", topic, next(content))
        (recipe.abort if number % 3 == 0 else recipe.commit)(first)
        recipe.batch(second, topic, next(content))
        (recipe.abort if number % 4 == 1 else recipe.commit)(second)


def _to_be_cleaned(recipe: Recipe, phase: int) -> None:
    for number, (topic, producer) in enumerate(
        (("compacted", "none"), ("compacted-purged", "none"), ("compacted-lz4", "lz4"))
    ):
        for batch in keyed(70 + 10 * phase + number, 25):
            recipe.batch(producer, topic, batch)
    if phase == 0:
        recipe.producer("t3", {"transactional.id": "golden-t3"})
        for number, batch in enumerate(keyed(90, 30)):
            recipe.begin("t3")
            recipe.batch("t3", "compacted-txn", batch)
            (recipe.abort if number % 3 == 0 else recipe.commit)("t3")
