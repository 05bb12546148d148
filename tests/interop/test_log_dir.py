"""One log directory, used by Kafka and seglog in turn: each continues where the other stopped, or was killed."""

from __future__ import annotations

import os
import select
import signal
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from seglog.core.error_codes import ErrorCode
from seglog.core.errors import LogDirInUseError
from seglog.core.types import TopicPartition
from seglog.protocol.apis import ApiKey
from seglog.records.compression import Codec
from seglog.records.record import NewRecord, encode_batch
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.log.producers import Origin
from tests.broker.broker_thread import Wire
from tests.kafka import KafkaNode, tools
from tests.storage.disk import values

_SMALL = ["--config", "segment.bytes=1048576", "--config", "segment.index.bytes=4096"]


def send(bootstrap: str, topic: str, partition: int, what: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for value in what:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(120) == 0


def consumed(node: KafkaNode, *partitions: str) -> dict[str, list[bytes | None]]:
    found: dict[str, list[bytes | None]] = {name: [] for name in partitions}
    for record in tools.consume(node.bootstrap, partitions):
        assert record.offset == len(found[record.directory])
        found[record.directory].append(record.value)
    return found


def append(directory: LogDir, partition: int, what: list[bytes], codec: Codec = Codec.NONE) -> None:
    log = directory.log("t", partition)
    log.append_records(
        [NewRecord(value, timestamp=1_700_000_000_000) for value in what],
        codec=codec,
        leader_epoch=max(log.epochs.latest, 0),
    )


def complaints(node: KafkaNode) -> list[str]:
    text = node.server_log.read_text(errors="replace")
    return [line for line in text.splitlines() if " ERROR " in line or " FATAL " in line]


def test_kafka_and_we_take_turns(own_kafka: KafkaNode) -> None:
    tools.topics(own_kafka.bootstrap, "--create", "--topic", "t", "--partitions", "2", *_SMALL)
    expected: dict[str, list[bytes | None]] = {"t-0": [], "t-1": []}
    for turn in range(3):
        theirs = [b"theirs %d %d" % (turn, at) for at in range(50)]
        send(own_kafka.bootstrap, "t", 0, theirs)
        expected["t-0"] += theirs
        own_kafka.stop()
        with LogDir.open(str(own_kafka.log_dir)) as opened:
            assert not opened.refused
            assert all(report.clean and not report.is_eventful for report in opened.reports.values())
            assert list(values(opened.log("t", 0)).values()) == expected["t-0"]
            for codec in (Codec.NONE, Codec.ZSTD, Codec.LZ4):
                ours = [b"ours %d %s %d" % (turn, codec.name.encode(), at) for at in range(40)]
                append(opened, turn % 2, ours, codec)
                expected[f"t-{turn % 2}"] += ours
        own_kafka.start()
        assert consumed(own_kafka, "t-0", "t-1") == expected
    assert complaints(own_kafka) == []


def write_until_killed(path: str, report: int) -> None:
    opened = LogDir.open(path)
    opened.create_topic("ours", 2)
    opened.create_topic("gone")
    opened.delete_topic("gone")
    at = 0
    while True:
        append(opened, 0, [b"%d:" % at + b"." * 50_000])
        at += 1
        os.write(report, b"%d\n" % at)


def killed_after(path: str, appends: int) -> int:
    """A child that appends to t-0 is killed when it has said ``appends``; returns how many it said."""
    receive, report = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            write_until_killed(path, report)
        finally:
            os._exit(1)
    os.close(report)
    said = b""
    try:
        while said.count(b"\n") < appends:
            assert select.select([receive], [], [], 60)[0]
            data = os.read(receive, 1 << 16)
            assert data, "the writer ended by itself"
            said += data
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    while data := os.read(receive, 1 << 16):
        said += data
    os.close(receive)
    return said.count(b"\n")


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_kafka_starts_on_the_directory_of_a_killed_seglog_process(own_kafka: KafkaNode) -> None:
    tools.topics(own_kafka.bootstrap, "--create", "--topic", "t", *_SMALL)
    own_kafka.stop()
    log_dir = own_kafka.log_dir
    said = killed_after(str(log_dir), 60)
    with max((log_dir / "t-0").glob("*.log")).open("ab") as last:
        last.write(b"torn" * 100)
    with LogDir.open(str(log_dir)) as opened:  # ours recovers, and leaves what it cut beside the segments
        report = opened.reports[TopicPartition("t", 0)]
        assert report.cut is not None
        assert report.cut.saved is not None
        first = list(values(opened.log("t")).values())
        assert said <= len(first) <= said + 1
    second = killed_after_again(log_dir)
    own_kafka.start()  # Kafka recovers
    found = consumed(own_kafka, "t-0")["t-0"]
    assert found[: len(first)] == first
    assert len(found) >= len(first) + second
    send(own_kafka.bootstrap, "t", 0, [b"on it goes"])
    own_kafka.stop()
    assert complaints(own_kafka) == []
    assert (log_dir / "seglog.topics").exists()
    with LogDir.open(str(log_dir)) as opened:
        assert not opened.refused
        assert list(values(opened.log("t")).values()) == [*found, b"on it goes"]


def killed_after_again(log_dir: Path) -> int:
    with LogDir.open(str(log_dir)) as opened:
        opened.delete_topic("ours")
    return killed_after(str(log_dir), 40)


def test_each_refuses_a_directory_that_the_other_has_open(own_kafka: KafkaNode) -> None:
    log_dir = str(own_kafka.log_dir)
    with pytest.raises(LogDirInUseError, match="another seglog or Kafka"):
        LogDir.open(log_dir)
    own_kafka.stop()
    before = own_kafka.server_log.stat().st_size
    with LogDir.open(log_dir), pytest.raises(RuntimeError, match="before it was ready"):
        own_kafka.start()
    # The whole of what it printed: its end is often the noise of a controller that goes down while it still starts.
    assert b"Failed to acquire lock on file .lock" in own_kafka.server_log.read_bytes()[before:]
    own_kafka.start()


def test_kafka_forgets_batches_of_a_producer_that_we_remember(own_kafka: KafkaNode) -> None:
    """Both start from the snapshot that Kafka has written. It has the last of the five batches only; seglog takes the
    others from the log."""
    tools.topics(own_kafka.bootstrap, "--create", "--topic", "t", *_SMALL)
    now_ms = int(time.time() * 1000)
    batches = [
        bytes(encode_batch([NewRecord(b"v", timestamp=now_ms)], producer_id=7, producer_epoch=0, base_sequence=number))
        for number in range(5)
    ]
    assert [produce(own_kafka.bootstrap, batch) for batch in batches] == [(0, at) for at in range(5)]
    assert [produce(own_kafka.bootstrap, batch) for batch in batches] == [(0, at) for at in range(5)]
    own_kafka.stop()
    own_kafka.start()
    out_of_order = (int(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), -1)
    assert [produce(own_kafka.bootstrap, batch) for batch in batches] == [*[out_of_order] * 4, (0, 4)]
    own_kafka.stop()
    with LogDir.open(str(own_kafka.log_dir)) as opened:
        log = opened.log("t")
        appended = [log.append(batch, origin=Origin.CLIENT) for batch in batches]
        assert [(result.first_offset, result.duplicate) for result in appended] == [(at, True) for at in range(5)]


def produce(bootstrap: str, batch: bytes) -> tuple[int, int]:
    """The error code and the base offset."""
    with Wire(bootstrap) as wire:
        partitions = [{"index": 0, "records": batch}]
        topics = [{"name": "t", "partition_data": partitions}]
        answer = wire.ask(ApiKey.PRODUCE, 12, transactional_id=None, acks=-1, timeout=30_000, topic_data=topics)
    (one,) = answer.responses[0].partition_responses
    return one.error_code, one.base_offset
