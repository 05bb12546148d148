"""One topic, read twice: by Spark's own Kafka connector through a running broker, and by us from its log directory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import Row as SparkRow

import seglog
from seglog.testing import Broker
from tests.golden.content import START_MS, batches, keyed, plain
from tests.golden.scenes import wait_cleaned
from tests.kafka import Recipe
from tests.kafka.records import Record
from tests.kafka.tools import produce
from tests.kit.waiting import SECONDS, wait_until

NODE_PROPERTIES: Final = {
    "log.cleaner.backoff.ms": "100",
    "log.segment.delete.delay.ms": "0",
    "log.flush.start.offset.checkpoint.interval.ms": "100",
    "replica.high.watermark.checkpoint.interval.ms": "100",
}
"""A broker that is soon done with what tests wait for."""

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_QUERY_SECONDS: Final = 300
OURS: Final = ("directory", "brokers", "both")
"""The places from which our source reads; ``kafka`` stands for the connector."""
_PLAIN: Final = {"enable.idempotence": "false"}
_CHUNK: Final = 5

Row = tuple[Any, ...]


class Range(NamedTuple):
    """The offsets of one partition that one Spark task read."""

    topic: str
    partition: int
    first: int
    last: int
    records: int


class Read(NamedTuple):
    """All rows by topic, partition and offset, and what each task had of them; timestamps in ms."""

    rows: list[Row]
    ranges: list[Range]


class Batch(NamedTuple):
    """A micro-batch: its end in the checkpoint, and the records it had, as (topic, partition, offset)."""

    end: dict[str, dict[str, int]]
    records: tuple[Row, ...]


class Node(Protocol):
    """A running broker: Kafka's, or ours."""

    @property
    def bootstrap(self) -> str: ...
    @property
    def log_dir(self) -> Path: ...


class OurNode:
    """Our broker, running on its own directory."""

    def __init__(self, broker: Broker) -> None:
        self.bootstrap = broker.bootstrap
        self.log_dir = Path(broker.data_dir)


class World:
    """A broker, a session with the connector, and topics that are filled once.

    ``until`` is how far our source reads in the broker's directory.
    """

    def __init__(self, node: Node, spark: SparkSession, until: str = "logEnd") -> None:
        self.node = node
        self.spark = spark
        self._until = until
        self._read: dict[tuple[str, tuple[tuple[str, str], ...]], Read] = {}
        self.progress: list[dict[str, Any]] = []
        """Of the last `run`: its source's progress at each batch that had records."""
        # Clients tell of deleted topics on stderr, where the next tests look for what their tools say.
        client: dict[str, str | int | float | bool] = {"bootstrap.servers": node.bootstrap, "log_level": 0}
        self._admin = AdminClient(client)
        self._producer = Producer({**client, "linger.ms": "0"})

    def close(self) -> None:
        """Close all clients of the broker, which otherwise report on stderr that it is down."""
        del self._admin, self._producer

    def read(self, source: str, options: Mapping[str, str]) -> Read:
        """All that ``source`` reads with these options: ``kafka``, or one of `OURS`."""
        frame = self.spark.read.format(_format(source)).options(**{**self.options(source), **options}).load()
        columns = [column for column in frame.columns if column != "timestamp"]
        found = frame.selectExpr(*columns, "unix_millis(timestamp) AS millis", "spark_partition_id()").collect()
        place = [columns.index(name) for name in ("topic", "partition", "offset")]
        rows = sorted((tuple(row[:-1]) for row in found), key=lambda row: tuple(row[at] for at in place))
        tasks: dict[tuple[int, str, int], list[int]] = {}
        for row in found:
            topic, partition, offset = (row[at] for at in place)
            tasks.setdefault((row[-1], topic, partition), []).append(offset)
        return Read(rows, sorted(Range(*key[1:], min(of), max(of), len(of)) for key, of in tasks.items()))

    def scan(self, source: str, options: Mapping[str, str], **arguments: Any) -> list[Row]:
        """The rows of `read`, by `seglog.scan`."""
        if source == "directory":
            place, given = str(self.node.log_dir), {"until": self._until, **options}
        else:
            place, given = self.node.bootstrap, {"kafkaConsumer.pollTimeoutMs": "60000", **options}
        headers = given.pop("includeHeaders", "false") == "true"
        if source == "both":
            arguments["directory"] = self.node.log_dir
        found = seglog.scan(place, options=given, **arguments)
        rows = found.read_all().to_pylist()
        names = [name for name in found.schema.names if name != "timestamp" and (headers or name != "headers")]
        return [(*(_value(row[name]) for name in names), _millis(row["timestamp"])) for row in rows]

    def read_once(self, source: str, options: Mapping[str, str]) -> Read:
        """`read` of topics that no test changes: several tests compare with it."""
        key = (source, tuple(sorted(options.items())))
        if key not in self._read:
            self._read[key] = self.read(source, options)
        return self._read[key]

    def stream(self, source: str, options: Mapping[str, str]) -> DataFrame:
        return self.spark.readStream.format(_format(source)).options(**{**self.options(source), **options}).load()

    def run(
        self, source: str, options: Mapping[str, str], checkpoint: Path, *, fail_at: int | None = None
    ) -> list[Batch]:
        """Run a query with ``AvailableNow`` to its end, and return its batches that had records.

        Our batch 0 has none: it pins where the stream begins. At the batch ``fail_at`` the sink fails.
        """
        seen: dict[int, tuple[Row, ...]] = {}

        def take(frame: DataFrame, batch_id: int) -> None:
            if batch_id == fail_at:
                raise RuntimeError("the sink fails")
            seen[batch_id] = tuple(sorted(tuple(row) for row in frame.select("topic", "partition", "offset").collect()))

        query = (
            self.stream(source, options)
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        if not query.awaitTermination(_QUERY_SECONDS):
            query.stop()
            raise RuntimeError(f"{source}: the query did not end")
        self.progress = [progress["sources"][0] for progress in query.recentProgress if progress["numInputRows"]]
        return [Batch(checkpointed(checkpoint, number), found) for number, found in sorted(seen.items()) if found]

    def options(self, source: str) -> dict[str, str]:
        """Where ``source`` finds the topics. Ours reads a directory to the log's end, as consumers of a lone broker
        do."""
        if source == "directory":
            return {"path": str(self.node.log_dir), "until": self._until}
        mount = {"path": str(self.node.log_dir)} if source == "both" else {}
        return {
            **mount,
            "kafka.bootstrap.servers": self.node.bootstrap,
            "fetchOffset.numRetries": "1",
            "kafkaConsumer.pollTimeoutMs": "60000",
        }

    def create(self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        new = NewTopic(topic, partitions, 1, config=dict(config or {}))
        for done in self._admin.create_topics([new]).values():
            done.result(SECONDS)

    def create_all(self, topics: Mapping[str, tuple[int, Mapping[str, str]]]) -> None:
        new = [NewTopic(name, count, 1, config=dict(config)) for name, (count, config) in topics.items()]
        for done in self._admin.create_topics(new).values():
            done.result(SECONDS)

    def delete(self, topic: str) -> None:
        for done in self._admin.delete_topics([topic]).values():
            done.result(SECONDS)

    def grow(self, topic: str, partitions: int) -> None:
        """More partitions for a topic, as many as this in all."""
        for done in self._admin.create_partitions([NewPartitions(topic, partitions)]).values():
            done.result(SECONDS)

    def produce(self, topic: str, count: int, partition: int = 0) -> None:
        """So many more records; what is in them does not matter."""
        self._producer.list_topics(topic, SECONDS)  # or it would not know of new partitions
        for number in range(count):
            self._producer.produce(topic, b"%d" % number, partition=partition)
        if left := self._producer.flush(SECONDS):
            raise RuntimeError(f"{left} records were not taken")

    def delete_records(self, topic: str, before: int) -> None:
        for done in self._admin.delete_records([TopicPartition(topic, 0, before)]).values():
            done.result(SECONDS)

    def wait_known(self, topic: str, partitions: int) -> None:
        """Until the broker tells clients of all of them, and their directories are there."""

        def known() -> bool:
            found = self._admin.list_topics(timeout=SECONDS).topics.get(topic)
            directories = [self.node.log_dir / f"{topic}-{number}" for number in range(partitions)]
            return found is not None and len(found.partitions) == partitions and all(map(Path.is_dir, directories))

        wait_until(known, f"{partitions} partitions of {topic}")

    def wait_log_start(self, topic: str, offset: int) -> None:
        """Until the broker has checkpointed it: only then it can be seen from outside."""
        path = self.node.log_dir / "log-start-offset-checkpoint"
        wait_until(
            lambda: path.exists() and f"{topic} 0 {offset}\n" in path.read_text(),
            f"the log start offset {offset} of {topic}",
        )

    def wait_high_watermarks(self, topic: str, offsets: Mapping[int, int]) -> None:
        """Until Kafka has checkpointed those of these partitions."""
        path = self.node.log_dir / "replication-offset-checkpoint"
        wanted = {f"{topic} {partition} {offset}" for partition, offset in offsets.items()}
        wait_until(
            lambda: path.exists() and wanted <= set(path.read_text().splitlines()),
            f"the high watermarks {offsets} of {topic}",
        )

    def wait_gone(self, topic: str) -> None:
        """Until nothing of a deleted topic is to be seen."""
        directory = self.node.log_dir / f"{topic}-0"
        wait_until(
            lambda: not directory.is_dir() and topic not in self._admin.list_topics(timeout=SECONDS).topics,
            f"{topic} to be gone",
        )


def _value(value: Any) -> Any:
    """A value as Spark has it."""
    if isinstance(value, list):
        return [SparkRow(**header) for header in value]
    return bytearray(value) if isinstance(value, bytes) else value


def _millis(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def _format(source: str) -> str:
    return "seglog" if source in OURS else source


def numbered(count: int) -> Iterator[list[Record]]:
    """``count`` records a second apart."""
    for first in range(0, count, _CHUNK):
        yield [
            Record(key=f"key-{number % 7}".encode(), value=b"%d" % number, timestamp=START_MS + number * 1000)
            for number in range(first, min(first + _CHUNK, count))
        ]


def fill(world: World, *, transactions: bool = True) -> None:
    """The topics that all tests read and none changes."""
    small = {"internal.segment.bytes": "4096", "index.interval.bytes": "100"}
    compact = {
        "cleanup.policy": "compact",
        "internal.segment.bytes": "2048",
        "min.cleanable.dirty.ratio": "0.001",
        "delete.retention.ms": "1000000000000",
    }
    topics: dict[str, tuple[int, Mapping[str, str]]] = {f"codec-{codec}": (1, {}) for codec in CODECS}
    topics |= {
        "multi": (3, small),
        "append-time": (1, {"message.timestamp.type": "LogAppendTime"}),
        "txn": (1, {}),
        "compacted": (1, compact),
        "deleted": (1, small),
        "empty": (2, {}),
    }
    world.create_all(topics)
    recipe = Recipe()
    for number, codec in enumerate(CODECS):
        recipe.producer(codec, {**_PLAIN, "compression.type": codec})
        for batch in batches(number, 30):
            recipe.batch(codec, f"codec-{codec}", batch)
    for partition, count in ((0, 700), (1, 50), (2, 3)):
        for batch in numbered(count):
            recipe.batch("none", "multi", batch, partition=partition)
    for batch in plain(1, 4, headers=True):
        recipe.batch("gzip", "append-time", batch)
    if transactions:
        _transactions(recipe)
    for batch in keyed(2, 40):
        recipe.batch("none", "compacted", batch)
    for batch in plain(3, 40):
        recipe.batch("none", "deleted", batch)
    produce(world.node.bootstrap, recipe)
    if transactions:
        produce(world.node.bootstrap, _left_open())
    world.delete_records("deleted", 61)
    world.wait_log_start("deleted", 61)
    wait_cleaned(world.node.log_dir, ["compacted-0"])


def _transactions(recipe: Recipe) -> None:
    """Committed, aborted, and two at once."""
    for name in ("t1", "t2"):
        recipe.producer(name, {"transactional.id": f"world-{name}"})
    content = plain(4, 40, headers=True)
    for number in range(5):
        recipe.begin("t1")
        recipe.begin("t2")
        for producer in ("t1", "t2", "none", "t1"):
            recipe.batch(producer, "txn", next(content))
        (recipe.abort if number % 2 else recipe.commit)("t1")
        recipe.batch("t2", "txn", next(content))
        (recipe.abort if number % 3 == 1 else recipe.commit)("t2")


def _left_open() -> Recipe:
    """A transaction that is never ended, and records after it: the last stable offset is before the end."""
    recipe = Recipe()
    recipe.producer("none", _PLAIN)
    recipe.producer("open", {"transactional.id": "world-open", "transaction.timeout.ms": "900000"})
    first, second = plain(5, 2)
    recipe.begin("open")
    recipe.batch("open", "txn", first)
    recipe.batch("none", "txn", second)
    recipe.halt("open")
    return recipe


def checkpointed(checkpoint: Path, batch_id: int) -> dict[str, dict[str, int]]:
    """The end offsets of a batch: the third line of its file, after the version and the query's settings."""
    line = (checkpoint / "offsets" / str(batch_id)).read_text().splitlines()[2]
    found: dict[str, dict[str, int]] = json.loads(line)
    return found
