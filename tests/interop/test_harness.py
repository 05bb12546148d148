"""The harness itself: a node starts and stops, and the oracle without a broker writes what a broker writes."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests import golden
from tests.golden.content import START_MS
from tests.kafka import CURRENT, KafkaNode, Recipe, Record, ZkKafkaNode, oracle, tools

_FIRST_LOG = "00000000000000000000.log"
_HEADER = struct.Struct(">qi")  # base offset, length of what follows
_NOW_MS = 1_800_000_000_000


def _files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.name != "partition.metadata"}


def _appends(directory: Path) -> Iterator[bytes]:
    """Each batch of the logs as the client sent it: base offset 0, which no checksum covers."""
    for log in sorted(directory.glob("*.log")):
        data = log.read_bytes()
        while data:
            size = _HEADER.unpack_from(data)[1] + _HEADER.size
            yield bytes(8) + data[8:size]
            data = data[size:]


def _send_with_librdkafka(bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "zstd"})
    errors: list[object] = []
    producer.produce(
        topic,
        key=b"k",
        value=b"v",
        headers={"h": b"1"},
        timestamp=START_MS,
        on_delivery=lambda error, _message: errors.append(error),
    )
    producer.flush(120)
    assert errors == [None]


def test_a_node_takes_records_of_a_foreign_client_and_leaves_a_clean_directory(own_kafka: KafkaNode) -> None:
    tools.topics(own_kafka.bootstrap, "--create", "--topic", "t")
    _send_with_librdkafka(own_kafka.bootstrap, "t")
    (record,) = tools.consume(own_kafka.bootstrap, ["t-0"])
    assert (record.offset, record.key, record.value, record.headers) == (0, b"k", b"v", (("h", b"1"),))
    assert (record.timestamp, record.timestamp_type, record.leader_epoch) == (START_MS, "CreateTime", 0)
    own_kafka.stop()
    assert (own_kafka.log_dir / ".kafka_cleanshutdown").exists()
    text = tools.dump_log_segments(CURRENT, [f"t-0/{_FIRST_LOG}"], "--deep-iteration", cwd=own_kafka.log_dir)
    assert text.startswith(f"Dumping t-0/{_FIRST_LOG}\nLog starting offset: 0\nbaseOffset: 0 lastOffset: 0 count: 1 ")
    own_kafka.start()
    assert tools.consume(own_kafka.bootstrap, ["t-0"]) == [record]


def test_the_java_producer_plays_transactions_and_the_consumer_sees_the_committed_ones(
    kafka: KafkaNode, topic_name: str
) -> None:
    tools.topics(kafka.bootstrap, "--create", "--topic", topic_name)
    recipe = Recipe()
    recipe.producer("t", {"transactional.id": topic_name})
    for value, end in ((b"lost", recipe.abort), (b"kept", recipe.commit)):
        recipe.begin("t")
        recipe.batch("t", topic_name, [Record(value=value)])
        end("t")
    assert tools.produce(kafka.bootstrap, recipe) == 2
    partition = [f"{topic_name}-0"]
    assert [record.offset for record in tools.consume(kafka.bootstrap, partition)] == [0, 2]
    (kept,) = tools.consume(kafka.bootstrap, partition, isolation="read_committed")
    assert (kept.offset, kept.value) == (2, b"kept")


def test_the_old_node_answers(old_kafka: ZkKafkaNode, topic_name: str) -> None:
    assert topic_name not in tools.topics(old_kafka.bootstrap, "--list").split()
    tools.topics(old_kafka.bootstrap, "--create", "--topic", topic_name)
    assert topic_name in tools.topics(old_kafka.bootstrap, "--list").split()


def test_a_node_that_cannot_start_says_why_and_leaves_no_process(tmp_path: Path) -> None:
    node = KafkaNode(tmp_path, {"log.cleaner.io.buffer.load.factor": "many"})
    with pytest.raises(RuntimeError, match=r"Invalid value many for configuration log\.cleaner"):
        node.start()
    node.kill()


@pytest.mark.parametrize("partition", ["rolled-0", "rolled-by-time-0", "codec-none-0", "txn-0", "txn-rolled-0"])
def test_the_oracle_writes_the_bytes_that_a_broker_wrote(tmp_path: Path, partition: str) -> None:
    root = golden.unpack(tmp_path, CURRENT)
    broker = golden.log_dir(root) / partition
    end = max(int(path.stem) for path in broker.glob("*.snapshot"))
    # The broker was restarted once, which is two epochs: one without a leader, one with it back.
    steps = [oracle.set_leader_epoch(0), *_appends(broker), oracle.set_leader_epoch(2)]
    config = golden.topics(root)[partition.rpartition("-")[0]].config
    directory = tmp_path / "oracle" / partition
    lines = oracle.append_batches(directory, steps, now_ms=_NOW_MS, config={"retention.ms": "-1", **config})
    assert lines[-1]["logEndOffset"] == end
    assert _files(directory) == _files(broker)


def test_the_oracle_opened_again_goes_on_as_a_restarted_broker(tmp_path: Path) -> None:
    """Producers older than a day are forgotten on loading, and bytes since the last index entry count from 0 again."""
    root = golden.unpack(tmp_path, CURRENT)
    broker = golden.log_dir(root) / "idempotent-0"
    restart, end = sorted(int(path.stem) for path in broker.glob("*.snapshot"))
    batches = list(_appends(broker))
    first = batches[: restart // 3]  # each has three records
    directory = tmp_path / "oracle" / "idempotent-0"
    oracle.append_batches(directory, [oracle.set_leader_epoch(0), *first], now_ms=_NOW_MS)
    later = [oracle.set_leader_epoch(2), *batches[len(first) :]]
    lines = oracle.append_batches(directory, later, now_ms=_NOW_MS, leader_epoch=2, recovery_point=restart)
    assert lines[-1]["logEndOffset"] == end
    assert _files(directory) == _files(broker)


def test_the_oracle_tells_why_it_refused_an_append(tmp_path: Path) -> None:
    root = golden.unpack(tmp_path, CURRENT)
    first = next(_appends(golden.log_dir(root) / "codec-none-0"))
    damaged = first[:-1] + bytes([first[-1] ^ 1])
    refused, accepted, end = oracle.append_batches(tmp_path / "t-0", [damaged, first], now_ms=_NOW_MS)
    assert refused["error"] == "CorruptRecordException"
    assert accepted["firstOffset"] == 0
    assert end["logEndOffset"] == accepted["lastOffset"] + 1


def test_the_cleaner_runs_without_a_broker(tmp_path: Path) -> None:
    root = golden.unpack(tmp_path, CURRENT)
    batches = list(_appends(golden.log_dir(root) / "rolled-0"))
    directory = tmp_path / "t-0"
    config = {"cleanup.policy": "compact", "retention.ms": "-1"}
    oracle.append_batches(directory, [*batches, oracle.roll(), batches[0]], now_ms=_NOW_MS, config=config)
    before = (directory / _FIRST_LOG).stat().st_size
    figures, state = oracle.clean_log(directory, now_ms=_NOW_MS, config=config)
    assert figures["bytesRead"] == before
    assert figures["bytesWritten"] == (directory / _FIRST_LOG).stat().st_size < before
    assert figures["nextDirtyOffset"] == state["segments"][-1] == 180
