"""Streams and batches from the directory of a broker that runs: stock clients produce, segments roll and go."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Final

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from seglog.testing import Broker
from tests.kit.waiting import wait_until

pytestmark = pytest.mark.xdist_group("spark")

PARTITIONS: Final = 2
SETTINGS: Final = {
    "log.initial.task.delay.ms": "100",
    "log.retention.check.interval.ms": "100",
    "log.flush.start.offset.checkpoint.interval.ms": "100",
}
TOPIC: Final = {"internal.segment.bytes": "4096", "index.interval.bytes": "1000", "retention.ms": "-1"}
_QUIET: Final = {"log_level": 0}
_SECONDS: Final = 60

Rows = list[tuple[int, bytes]]


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(settings=SETTINGS, process=True) as running:
        running.create_topic("t", PARTITIONS, TOPIC)
        yield running


class Client:
    """A stock producer in its own thread: it writes numbers, in turn to each partition, as many as it is allowed."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "batch.num.messages": 50,
                "linger.ms": 2,
                "reconnect.backoff.max.ms": 200,
                **_QUIET,
            }
        )
        self._allowed: SimpleQueue[int] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="client")
        self.sent = 0

    def __enter__(self) -> Client:
        self._thread.start()
        return self

    def allow(self, hundreds: int) -> None:
        """Produce so many records in the background."""
        self._allowed.put(hundreds)

    def __exit__(self, *_: object) -> None:
        """All that was allowed is acknowledged then."""
        self._allowed.put(0)
        self._thread.join()
        assert self._producer.flush(_SECONDS) == 0

    def _run(self) -> None:
        while hundreds := self._allowed.get():
            for _ in range(hundreds * 100):
                partition = self.sent % PARTITIONS
                self._producer.produce("t", b"%d" % self.sent, partition=partition, on_delivery=_is_delivered)
                self.sent += 1
                self._producer.poll(0)


def _is_delivered(error: object, _: object) -> None:
    assert error is None


class Live:
    """A query on the directory. What it has had twice, of a batch that is done again, counts once.

    With each batch the client goes on, and the broker is told to delete what the batch before has read.
    """

    def __init__(self, spark: SparkSession, broker: Broker, client: Client, checkpoint: Path) -> None:
        self._client = client
        self._admin = AdminClient({"bootstrap.servers": broker.bootstrap, **_QUIET})
        self._stream = (
            spark.readStream.format("seglog")
            .options(path=broker.data_dir, subscribe="t", startingOffsets="earliest")
            .load()
        )
        self._checkpoint = checkpoint
        self.batches: dict[int, dict[int, Rows]] = {}
        self._deletes = True
        self._deleting = threading.Lock()
        self.seen = threading.Semaphore(0)

    def start(self) -> StreamingQuery:
        writer = self._stream.writeStream.foreachBatch(self._take)
        return writer.option("checkpointLocation", str(self._checkpoint)).start()

    def _take(self, frame: DataFrame, batch_id: int) -> None:
        self._client.allow(10)
        found: dict[int, Rows] = {}
        for row in frame.select("partition", "offset", "value").collect():
            found.setdefault(row[0], []).append((row[1], bytes(row[2])))
        self.batches[batch_id] = found
        with self._deleting:
            if self._deletes and batch_id - 1 in self.batches:
                read = self.batches[batch_id - 1]
                before = [TopicPartition("t", number, max(rows)[0] + 1) for number, rows in read.items()]
                for done in self._admin.delete_records(before).values() if before else ():
                    done.result(_SECONDS)
        if found:
            self.seen.release()

    def stop_deleting(self) -> None:
        """Returns after a deletion that has begun: its client does not retry if the broker dies before it answers."""
        with self._deleting:
            self._deletes = False

    def wait(self, query: StreamingQuery, batches: int) -> None:
        """Wait until ``batches`` further micro-batches had records."""
        for _ in range(batches):
            while not self.seen.acquire(timeout=1):
                assert query.isActive, query.exception()

    def rows(self, partition: int) -> Rows:
        return [row for _, found in sorted(self.batches.items()) for row in sorted(found.get(partition, []))]


def expected(sent: int, partition: int) -> Rows:
    """The offsets and values of a partition after ``sent`` records."""
    return list(enumerate(b"%d" % number for number in range(partition, sent, PARTITIONS)))


def test_a_stream_follows_a_broker_while_segments_come_and_go(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    with Client(broker.bootstrap) as client:
        live = Live(spark, broker, client, tmp_path / "checkpoint")
        client.allow(10)
        query = live.start()
        live.wait(query, 2)
        client.allow(10)
        query.stop()  # wherever it is
        query = live.start()
        live.wait(query, 2)
        live.stop_deleting()
        client.allow(10)
        broker.restart(kill=True)
        live.wait(query, 1)
    query.processAllAvailable()
    query.stop()

    def bases(partition: int) -> list[int]:
        found = (Path(broker.data_dir) / f"t-{partition}").glob("*.log")
        return sorted(int(path.stem) for path in found)

    for partition in range(PARTITIONS):
        assert live.rows(partition) == expected(client.sent, partition)
        wait_until(partial(lambda one: bases(one)[0] > 0, partition), "the cleaning of what was deleted")
        assert len(bases(partition)) > 2


def test_a_batch_reads_what_a_consumer_would(spark: SparkSession, broker: Broker) -> None:
    with Client(broker.bootstrap) as client:
        client.allow(30)
        options = {"path": broker.data_dir, "subscribe": "t", "until": "highWatermark"}
        counts = [spark.read.format("seglog").options(**options).load().count() for _ in range(3)]
        assert counts == sorted(counts)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", **_QUIET})
    ends = [consumer.get_watermark_offsets(TopicPartition("t", number), _SECONDS) for number in range(PARTITIONS)]
    consumer.close()
    frame = spark.read.format("seglog").options(path=broker.data_dir, subscribe="t").load()
    found = sorted((row[0], row[1], bytes(row[2])) for row in frame.select("partition", "offset", "value").collect())
    assert found == [
        (number, offset, value) for number in range(PARTITIONS) for offset, value in expected(client.sent, number)
    ]
    assert ends == [(0, len(expected(client.sent, number))) for number in range(PARTITIONS)]
    assert counts[-1] <= client.sent == 3000
