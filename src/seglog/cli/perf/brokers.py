"""`seglog perf produce|consume|e2e`: the speed of brokers, as Kafka's perf tools measure it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Annotated, Any, Final

import typer

from seglog.cli.options import JsonDocument, with_options
from seglog.cli.output import FINE
from seglog.cli.perf.meter import TOPIC, CodecName, Meter, RecordSize, Seconds, now
from seglog.cli.wire.clients import DEFAULT_BROKERS, Brokers, Cluster
from seglog.cli.wire.input_lines import OutgoingRecord
from seglog.cli.wire.sender import ACKS, Sender, producer_settings
from seglog.core.errors import RequestFailedError

_VALUES: Final = 64
"""Values of different contents, sent in turn."""
_WAIT: Final = 0.2
_BUFFER_KB: Final = 32 << 10
"""Java's ``buffer.memory``. The latency depends on how much may wait."""

_Topic = Annotated[str, typer.Option("--topic", "-t", metavar="TOPIC", help="Created if it does not exist.")]
_Partitions = Annotated[int, typer.Option(metavar="N", min=1, help="Partitions of a new topic.")]
_Acks = Annotated[str, typer.Option(metavar="|".join(ACKS), help="Replicas that acknowledge; -1 is all.")]


@with_options
def produce(
    topic: _Topic = TOPIC,
    partitions: _Partitions = 1,
    records: Annotated[
        int, typer.Option("--records", "--num-records", "-n", metavar="N", min=1, help="Number of records.")
    ] = 1_000_000,
    record_size: RecordSize = 1024,
    throughput: Annotated[
        int, typer.Option(metavar="N", min=-1, help="Records per second at most; -1: no limit.")
    ] = -1,
    acks: _Acks = "all",
    idempotent: Annotated[
        bool | None, typer.Option("--idempotent/--no-idempotent", show_default="with --acks all")
    ] = None,
    codec: CodecName = "none",
    batch_size: Annotated[int, typer.Option(metavar="BYTES", min=1, help="Size of a batch.")] = 16_384,
    linger_ms: Annotated[int, typer.Option(metavar="MS", min=0, help="Wait MS for a batch to fill.")] = 5,
    seconds: Seconds = None,
    brokers: Brokers = DEFAULT_BROKERS,
    json: JsonDocument = False,
) -> int:
    """Send records: records per second, and the latency of each from the call to its acknowledgement.

    With idempotence an empty record, which is not counted, is sent first.
    """
    settings = producer_settings(acks, codec, idempotent, None, batch_size, linger_ms)
    cluster = brokers.cluster()
    _make_topic(cluster, topic, partitions)
    values = _values(record_size)
    sender = _TimedSender(cluster, topic, settings, Meter("produce"))
    meter = sender.meter
    for number in range(records):
        sender.send(OutgoingRecord(None, values[number % _VALUES], ()))
        if throughput > 0:
            while (ahead := (number + 1) / throughput - (now() - meter.began)) > 0.001:
                sender.wait(min(ahead, _WAIT))
        if seconds is not None and now() - meter.began >= seconds:
            break
    sender.flush()
    facts = {"topic": topic, "recordSize": record_size, "batchSize": batch_size, "codec": codec, "acks": acks}
    meter.print(facts, json=json)
    return FINE


@with_options
def consume(
    topic: _Topic = TOPIC,
    records: Annotated[
        int | None,
        typer.Option(
            "--records",
            "--num-records",
            "--messages",
            "-n",
            metavar="N",
            min=1,
            help="Number of records.",
            show_default="all",
        ),
    ] = None,
    fetch_size: Annotated[int, typer.Option(metavar="BYTES", min=1, help="Bytes per partition and fetch.")] = 1 << 20,
    seconds: Seconds = None,
    brokers: Brokers = DEFAULT_BROKERS,
    json: JsonDocument = False,
) -> int:
    """Read a topic from its beginning: records per second, counted from the first record."""
    cluster = brokers.cluster()
    there = [(topic, number) for number in cluster.partitions([topic])[topic]]
    ends, starts = cluster.ends(there), cluster.first(there)
    behind = {at for at in there if starts[at] < ends[at]}
    consumer = cluster.consumer({**_CONSUMER, "max.partition.fetch.bytes": fetch_size})
    meter = Meter("consume")
    asked = meter.began
    first = 0.0
    try:
        make = cluster.kafka.TopicPartition
        consumer.assign([make(name, number, starts[name, number]) for name, number in behind])
        while behind and (records is None or meter.records < records):
            if seconds is not None and now() - asked >= seconds:
                break
            with cluster.errors(f"topic {topic}"):
                batch = consumer.consume(10_000 if records is None else min(10_000, records - meter.records), _WAIT)
            if batch and not first:
                first = meter.began_at_first_record()
            if not batch:
                cluster.check_quiet(f"topic {topic}", now() - meter.ended)
                continue
            good = [message for message in batch if message.error() is None]
            meter.add(len(good), sum(len(message.value() or b"") + len(message.key() or b"") for message in good))
            for message in batch:
                _check(cluster, topic, message)
                at = topic, message.partition()
                if message.error() is not None or message.offset() + 1 >= ends[at]:
                    behind.discard(at)
    finally:
        consumer.close()
    waited = first - asked if first else 0.0
    meter.print({"topic": topic, "secondsToFirst": round(waited, 6)}, json=json)
    return FINE


@with_options
def e2e(
    topic: _Topic = TOPIC,
    partitions: _Partitions = 1,
    records: Annotated[int, typer.Option("--records", "-n", metavar="N", min=1, help="Number of records.")] = 10_000,
    record_size: RecordSize = 100,
    acks: _Acks = "all",
    seconds: Seconds = None,
    brokers: Brokers = DEFAULT_BROKERS,
    json: JsonDocument = False,
) -> int:
    """Send one record at a time and wait until a consumer receives it: the latency of each."""
    settings = producer_settings(acks, "none", None, None, 16_384, 0)
    cluster = brokers.cluster()
    _make_topic(cluster, topic, partitions)
    sender = Sender(cluster, topic, settings, "murmur2", 0, counts=False)
    consumer = cluster.consumer(_CONSUMER)
    (end,) = cluster.ends([(topic, 0)]).values()
    rng = Random(1)
    meter = Meter("e2e")
    try:
        consumer.assign([cluster.kafka.TopicPartition(topic, 0, end)])
        _exchange(cluster, sender, consumer, topic, b"first")  # not measured: connections, producer ids
        meter.begin()
        for _ in range(records):
            value = rng.randbytes(record_size)
            before = now()
            _exchange(cluster, sender, consumer, topic, value)
            meter.latencies.append(now() - before)
            meter.add(1, record_size)
            if seconds is not None and now() - meter.began >= seconds:
                break
        sender.flush()
    finally:
        consumer.close()
    meter.print({"topic": topic, "recordSize": record_size, "acks": acks}, json=json)
    return FINE


_CONSUMER: Final = {
    "group.id": TOPIC,
    "enable.auto.commit": False,
    "enable.partition.eof": False,
    "auto.offset.reset": "earliest",
    "allow.auto.create.topics": False,
    "fetch.wait.max.ms": 500,
}


class _TimedSender(Sender):
    """Records the latency of each record."""

    def __init__(self, cluster: Cluster, topic: str, settings: Mapping[str, object], meter: Meter) -> None:
        super().__init__(
            cluster, topic, {**settings, "queue.buffering.max.kbytes": _BUFFER_KB}, "murmur2", None, counts=True
        )
        self.meter = meter
        if settings["enable.idempotence"]:  # librdkafka asks for its producer id half a second after its creation
            self.send(OutgoingRecord(None, b"", ()))
            self.flush()
        meter.begin()

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            super()._delivered(error, message)
            return
        self.meter.latencies.append(message.latency() or 0.0)
        self.meter.add(1, len(message))


def _exchange(cluster: Cluster, sender: Sender, consumer: Any, topic: str, value: bytes) -> None:
    """Send a record and wait for it to come back."""
    sender.send(OutgoingRecord(None, value, ()))
    sender.push()
    until = now() + cluster.timeout
    while True:
        message = consumer.poll(_WAIT)
        if message is not None:
            _check(cluster, topic, message)
            if message.value() != value:
                raise RequestFailedError(f"topic {topic}: another record was received: e2e needs its own topic")
            return
        sender.wait(0)
        if now() >= until:
            raise RequestFailedError(f"topic {topic}: no record was received within {cluster.timeout:g} s")


def _check(cluster: Cluster, topic: str, message: Any) -> None:
    error = message.error()
    if error is not None and (error.fatal() or not error.retriable()):
        raise RequestFailedError(f"topic {topic}, partition {message.partition()}: {cluster.describe(error)}")


def _make_topic(cluster: Cluster, topic: str, partitions: int) -> None:
    if topic in cluster.topics():
        return
    futures = cluster.admin.create_topics([cluster.api.NewTopic(topic, num_partitions=partitions)])
    cluster.result(futures[topic], f"topic {topic}")


def _values(size: int) -> Sequence[bytes]:
    rng = Random(1)
    return [rng.randbytes(size) for _ in range(_VALUES)]
