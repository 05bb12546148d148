"""How other people's clients react to our errors, and to a broker that goes away and comes back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.choosing import NEW_AND_OLD, names
from tests.clients.process import ClientProcess, encoded, told
from tests.clients.servers import Kind, Server
from tests.clients.versions import CLIENTS
from tests.kafka.jars import CURRENT

_OUT_OF_RANGE = {"_AUTO_OFFSET_RESET", "OffsetOutOfRangeError", "OffsetOutOfRangeException"}
_TOO_LARGE = {"MSG_SIZE_TOO_LARGE", "MessageSizeTooLargeError", "RecordTooLargeException"}
# A client that does not know a topic asks again, until its own time is over.
_NO_TOPIC = {
    "_UNKNOWN_TOPIC", "_MSG_TIMED_OUT", "UNKNOWN_TOPIC_OR_PART", "KafkaTimeoutError", "UnknownTopicOrPartitionError",
    "TimeoutException",
}  # fmt: skip
_RATE = 400
_TELLING = [("ours", "confluent"), ("ours", f"java-{CURRENT}")]


@pytest.mark.parametrize("name", names(*NEW_AND_OLD))
def test_an_offset_out_of_range(server: Server, name: str, topic_name: str) -> None:
    with ClientProcess(name, server.bootstrap) as client, ClientProcess("confluent", server.bootstrap) as other:
        other.create(topic_name, 1)
        other.run("produce", topic=topic_name, numbers=[0, 10], partitions=1)
        assert other.admin("delete_records", topic=topic_name, before=4) == 4
        for start in (0, 1000):
            said = client.run("consume", topic=topic_name, starts={0: start}, reset="earliest", count=6)
            assert [record.offset for record in told(said)] == [4, 5, 6, 7, 8, 9]
            ((word, error, _),) = client.run("consume", topic=topic_name, starts={0: start}, reset="none", count=6)
            assert (word, error in _OUT_OF_RANGE) == ("error", True), error
        for start in (0, 1000):
            # Something comes in all the time: the first record that it reads is not one that was there before.
            client.begin("consume", topic=topic_name, starts={0: start}, reset="latest", count=1)
            other.begin("produce", topic=topic_name, numbers=[10, 100_000], partitions=1, rate=100)
            (record,) = told(client.finish())
            assert record.offset >= 10
            other.finish("stop")


@pytest.mark.parametrize("name", names(*NEW_AND_OLD))
def test_a_record_that_is_too_large_and_a_topic_that_is_not_there(server: Server, name: str, topic_name: str) -> None:
    with ClientProcess(name, server.bootstrap) as client:
        client.create(topic_name, 1, {"max.message.bytes": "2000"})
        for idempotent in {False, client.kind.idempotent}:
            large = [encoded(0, None, bytes(5000))]
            ((word, _, error),) = client.run("produce", topic=topic_name, records=large, idempotent=idempotent)
            assert (word, error in _TOO_LARGE) == ("refused", True), error
            small = [encoded(0, None, bytes(500))]
            said = client.run("produce", topic=topic_name, records=small, idempotent=idempotent)
            assert said == [["acked", 0, 0, int(idempotent)]]
        # For aiokafka this is also the time in which a broker must answer it at all.
        timeout_ms = 5000 if client.kind.driver == "aiokafka" else 1500
        ((word, _, error),) = client.run(
            "produce", topic=f"no-{topic_name}", records=[encoded(0, None, b"x")], timeout_ms=timeout_ms
        )
        assert (word, error in _NO_TOPIC) == ("refused", True), error


# With Kafka aiokafka 0.8 gives up when the broker is there again and has no leaders yet; ours answers when it has them.
_RESTARTS = [
    pytest.param(kind, name, marks=() if (kind, name) in _TELLING else pytest.mark.everything)
    for kind in ("ours", "kafka")
    for name in CLIENTS
    if (kind, name) != ("kafka", "aiokafka-0.8")
]


@pytest.fixture
def own_server(kind: Kind, tmp_path: Path) -> Iterator[Server]:
    """For a test that stops it."""
    with Server(kind, tmp_path / "log") as running:
        yield running


@pytest.mark.parametrize(("kind", "name"), _RESTARTS)
def test_a_broker_that_stops_and_one_that_is_killed(own_server: Server, name: str) -> None:
    with ClientProcess(name, own_server.bootstrap) as producer, ClientProcess(name, own_server.bootstrap) as consumer:
        producer.create("t", 2)
        total = 3 * _RATE
        consumer.begin("consume", topic="t", starts={0: 0, 1: 0}, count=100_000)
        idempotent = producer.kind.idempotent
        producer.begin("produce", topic="t", numbers=[0, total], partitions=2, rate=_RATE, idempotent=idempotent)
        for part, end in enumerate((own_server.stop, own_server.kill)):
            for one in (producer, consumer):
                _until_moved(one, (part + 1) * _RATE // 2)
            end()
            own_server.start()
        said = producer.finish()
        assert not [what for what in said if what[0] == "refused"]
        wanted = {partition: [b"%d" % number for number in range(partition, total, 2)] for partition in (0, 1)}
        texts = {encoded(0, None, b"%d" % number)[2] for number in range(total)}
        consumer.until(lambda one: {what[5] for what in one.seen if what[0] == "record"} >= texts, "all records")
        consumer.tell("stop")
        consumer.until(lambda one: one.seen[-1] == ["done"])
        assert not [what for what in consumer.seen if what[0] == "error"]
        for partition, values in wanted.items():
            found = [record for record in told(consumer.seen) if record.partition == partition]
            # It is given each offset once, over all restarts; duplicates are those that a producer made.
            assert [record.offset for record in found] == list(range(len(found)))
            read = [record.value for record in found]
            assert (read if idempotent else list(dict.fromkeys(read))) == values


def _until_moved(client: ClientProcess, count: int) -> None:
    """So many records have come in or gone out."""
    client.until(lambda one: sum(what[0] in ("acked", "record") for what in one.seen) >= count, "records that move")
