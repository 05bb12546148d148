"""`scan` of brokers: the rows and errors of the Spark source and of Kafka's consumer, whatever happens meanwhile."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from hypothesis import given, settings
from hypothesis import strategies as st

import seglog
from seglog.core.errors import (
    AuthenticationFailedError,
    DataLossError,
    InvalidConfigError,
    RequestFailedError,
    SeglogError,
    UnknownTopicError,
)
from seglog.testing import Broker, Cluster
from seglog.testing.broker_security import SecurityProtocol
from tests import golden
from tests.broker.python_clients import AdminClient
from tests.cases import case
from tests.kafka.jars import KafkaVersion
from tests.spark.logs import as_row, make_reader, rows

COUNT = 2_000
FIRST = 1_790_000_000_000
"""The timestamp of the first record of topic ``t``; the others follow a second apart."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """Topic ``t``, three partitions in batches of a few records; ``empty`` has none."""
    with Broker({"t": 3, "empty": 2}, settings={"log.retention.ms": "-1"}) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.size": 1_000, "linger.ms": 60_000})
        for number in range(COUNT):
            key, value = b"k%d" % (number % 50), b"v%d" % number + b"x" * (number % 90)
            producer.produce("t", value, key=key, timestamp=FIRST + number * 1000, partition=number % 3)
        assert producer.flush(30) == 0
        yield broker


@pytest.fixture
def faulty(broker: Broker) -> Iterator[Broker]:
    yield broker
    broker.faults.assert_all_fired()
    broker.faults.clear()


def found(scan: Any) -> list[tuple[object, ...]]:
    """The rows as `tests.spark.logs.rows` makes them, in the order of the scan."""
    names = ("topic", "partition", "offset", "timestamp", "timestampType", "key", "value", "headers")
    return [
        (
            *(row[name] for name in names[:3]),
            round(row["timestamp"].timestamp() * 1000),
            *(row[name] for name in names[4:7]),
            row["headers"] and tuple((header["key"], header["value"]) for header in row["headers"]),
        )
        for batch in scan
        for row in batch.select(list(names)).to_pylist()
    ]


def produce(broker: Broker, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.size": 10_000})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(30) == 0


def places(scan: Any) -> list[tuple[int, int]]:
    return [(row["partition"], row["offset"]) for row in scan.read_all().select(["partition", "offset"]).to_pylist()]


EVERY = [(partition, offset) for partition in range(3) for offset in range(len(range(partition, COUNT, 3)))]


# The same rows


@pytest.mark.filterwarnings("ignore:seglog.*it has no topic id")  # some files of 2.8 are read through brokers
@pytest.mark.parametrize("version", ["4.4.0", "2.8.2"])
def test_every_topic_of_a_golden_directory_has_the_rows_of_kafkas_consumer(
    tmp_path: Path, version: KafkaVersion
) -> None:
    """All codecs and formats, headers, transactions, compacted and deleted offsets: through brokers, with the mounted
    directory, and from the directory alone; as the Spark source reads them too."""
    root = golden.unpack(tmp_path, version)
    keeps = {"log.retention.ms": "-1", "transaction.abort.timed.out.transaction.cleanup.interval.ms": "86400000"}
    with Broker(copy_of=golden.log_dir(root), settings=keeps) as broker:
        for isolation in ("read_uncommitted", "read_committed"):
            through = found(seglog.scan(broker.bootstrap, isolation_level=isolation))
            assert through == sorted(through, key=lambda row: row[:3])
            spark = {"kafka.bootstrap.servers": broker.bootstrap, "includeHeaders": "true", "isolationLevel": isolation}
            assert through == sorted(rows(make_reader(spark)), key=lambda row: row[:3])
            consumed = [
                as_row(record)
                for name in golden.partitions(root)
                if not name.startswith("__") and (root / "expected" / name / f"{isolation}.jsonl").exists()
                for record in golden.expected_records(root, name, isolation=isolation)
            ]
            there = {row[:2] for row in consumed}
            assert [row for row in through if row[:2] in there] == sorted(consumed, key=lambda row: row[:3])
            assert len(consumed) > 40
            assert found(seglog.scan(broker.bootstrap, directory=broker.data_dir, isolation_level=isolation)) == through
            assert found(seglog.scan(broker.data_dir, isolation_level=isolation)) == through


@settings(max_examples=settings().max_examples // 3)
@given(
    bounds=st.tuples(st.integers(0, 800), st.integers(0, 800)).map(sorted),
    options=st.fixed_dictionaries(
        {},
        optional={
            "max.partition.fetch.bytes": st.integers(1, 50_000),
            "kafka.fetch.max.bytes": st.integers(1, 50_000),
            "keyEquals": st.integers(0, 60).map(lambda number: f"k{number}"),
        },
    ),
    threads=st.integers(1, 4),
)
def test_any_range_by_any_threads_and_fetch_sizes(
    broker: Broker, bounds: list[int], options: dict[str, object], threads: int
) -> None:
    case()
    low, high = bounds
    only = {name: value for name, value in options.items() if name == "keyEquals"}
    span: dict[str, Any] = {"topics": "t", "start": {"t": {0: low, 1: low}}, "end": high}
    files = found(seglog.scan(broker.data_dir, options=only, **span))
    assert found(seglog.scan(broker.bootstrap, options=options, threads=threads, **span)) == files
    if not only:
        assert len(files) == sum(min(high, 667) - min(start, high, 667) for start in (low, low, 0)) - (high > 666)


def test_times_are_those_of_the_spark_source(broker: Broker) -> None:
    first, last = FIRST + 500_500, FIRST + 900_000
    spark = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "t", "includeHeaders": "true"}
    wanted = sorted(
        rows(make_reader({**spark, "startingTimestamp": str(first), "endingTimestamp": str(last)})),
        key=lambda row: row[:3],
    )
    since, until = (datetime.fromtimestamp(moment / 1000, UTC) for moment in (first, last))
    for where in (broker.bootstrap, broker.data_dir):
        for bounds in (
            {"since": since, "until": until},
            {"since": since.isoformat(), "until": until.replace(tzinfo=None).isoformat()},
            {"start": since, "end": until},
            {"options": {"startingTimestamp": first, "endingTimestamp": last}},
        ):
            assert found(seglog.scan(where, topics="t", **bounds)) == wanted
    assert len(wanted) == 399
    assert places(seglog.scan(broker.bootstrap, topics="t", since="2100-01-01")) == []
    assert places(seglog.scan(broker.bootstrap, topics="t", until="2100-01-01")) == EVERY


def test_partitions_are_chosen_by_number(broker: Broker) -> None:
    assert places(seglog.scan(broker.bootstrap, partitions={"t": [2], "empty": [0]})) == EVERY[-666:]
    assert seglog.scan(broker.bootstrap, topics=["empty"]).read_all().num_rows == 0
    assert seglog.scan(broker.bootstrap, options={"subscribePattern": "e.*"}).read_all().num_rows == 0


def test_a_scan_ends_where_the_log_ended_when_it_was_made(tmp_path: Path) -> None:
    with Broker({"t": [b"a", b"b"]}, data_dir=tmp_path) as broker:
        scans = [seglog.scan(where, topics="t") for where in (broker.bootstrap, str(tmp_path))]
        produce(broker, "t", [b"c"])
        for _ in range(2):
            assert [scan.read_all().column("value").to_pylist() for scan in scans] == [[b"a", b"b"]] * 2


# What happens meanwhile


@pytest.mark.parametrize("code", ["NOT_LEADER_OR_FOLLOWER", "UNKNOWN_SERVER_ERROR", "KAFKA_STORAGE_ERROR"])
def test_a_retriable_error_is_retried(faulty: Broker, code: str) -> None:
    scan = seglog.scan(faulty.bootstrap, topics="t")
    faulty.fail("Fetch", error=code, topic="t", partition=1, times=2)
    assert places(scan) == EVERY


@pytest.mark.parametrize("effect", ["lose", "cut", "throttle", "delay"])
def test_each_record_is_there_once_whatever_becomes_of_answers(faulty: Broker, effect: str) -> None:
    scan = seglog.scan(faulty.bootstrap, topics="t", options={"max.partition.fetch.bytes": 2000})
    if effect == "cut":
        faulty.cut("Fetch", size=700, nth=2, times=3)
    elif effect == "lose":
        faulty.lose("Fetch", nth=2, times=3)
    else:
        getattr(faulty, effect)("Fetch", seconds=0.05, nth=2, times=3)
    assert places(scan) == EVERY


def test_an_error_that_stays_names_partition_broker_and_reason(faulty: Broker) -> None:
    scan = seglog.scan(faulty.bootstrap, topics="t", options={"kafkaConsumer.pollTimeoutMs": 300})
    faulty.fail("Fetch", error="NOT_LEADER_OR_FOLLOWER", topic="t", partition=1, times=None)
    message = f"t-1: no records from offset 0 on for 0.3 seconds: broker {faulty.bootstrap}: NOT_LEADER_OR_FOLLOWER"
    with pytest.raises(RequestFailedError, match=message):
        scan.read_all()
    assert scan.failure is not None


def test_an_error_that_no_retry_mends_is_raised_at_once(faulty: Broker) -> None:
    scan = seglog.scan(faulty.bootstrap, topics="t")
    faulty.fail("Fetch", error="TOPIC_AUTHORIZATION_FAILED", topic="t", partition=2)
    with pytest.raises(RequestFailedError, match=r"t-2, offset 0: broker .*: TOPIC_AUTHORIZATION_FAILED"):
        scan.read_all()


def test_records_that_were_deleted_meanwhile_are_lost(caplog: pytest.LogCaptureFixture) -> None:
    with Broker({"t": [b"v"] * 100}) as broker:
        strict = seglog.scan(broker.bootstrap, topics="t")
        lax = seglog.scan(broker.bootstrap, topics="t", options={"failOnDataLoss": False})
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for done in admin.delete_records([TopicPartition("t", 0, 40)]).values():
            done.result(60)
        with pytest.raises(DataLossError, match="t-0: offsets 0 to 39 were deleted before they were read; set option"):
            strict.read_all()
        with caplog.at_level(logging.WARNING, "seglog.spark"):
            assert [offset for _, offset in places(lax)] == list(range(40, 100))
    assert "data was lost: t-0: offsets 0 to 39" in caplog.text


def test_a_topic_that_was_created_again_is_another_topic() -> None:
    with Broker({"t": [b"v"] * 10}) as broker:
        scans = [
            seglog.scan(broker.bootstrap, topics="t"),
            seglog.scan(broker.bootstrap, topics="t", directory=broker.data_dir),
        ]
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for done in admin.delete_topics(["t"]).values():
            done.result(60)
        broker.create_topic("t", records=[b"other"] * 10)
        for scan in scans:
            with pytest.raises(DataLossError, match="topic t was deleted and created again"):
                scan.read_all()


def test_a_log_that_was_truncated_meanwhile(tmp_path: Path) -> None:
    with seglog.open(tmp_path) as directory:
        directory.create_topic("t")
        log = directory.log("t")
        for number in range(20):
            log.append_records([seglog.NewRecord(b"%d" % number)])
        scan = seglog.scan(tmp_path)
        log.truncate_to(12)
        with pytest.raises(DataLossError, match="offsets 12 to 19"):
            scan.read_all()


def test_a_scan_follows_the_leader_when_a_broker_dies() -> None:
    with Cluster({"t": 1}, brokers=3) as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "batch.size": 10_000})
        for _ in range(5000):
            producer.produce("t", b"v" * 200)
        assert producer.flush(30) == 0
        options = {"max.partition.fetch.bytes": 20_000}
        scan = seglog.scan(cluster.bootstrap, topics="t", options=options, batch_rows=100, threads=1)
        offsets = []
        for number, batch in enumerate(scan):
            offsets += batch.column("offset").to_pylist()
            if number == 3:
                leader = cluster.leader("t", 0)
                assert leader is not None
                cluster[leader].kill()
        assert offsets == list(range(5000))


@pytest.mark.parametrize("protocol", ["SSL", "SASL_PLAINTEXT", "SASL_SSL"])
def test_a_secured_broker_is_read_with_the_properties_of_a_client(protocol: SecurityProtocol) -> None:
    with Broker({"t": [b"v"] * 10}, security=protocol) as broker:
        options = broker.client_properties("alice", style="java")
        where = options.pop("bootstrap.servers")
        assert seglog.scan(where, topics="t", options=options).read_all().num_rows == 10
        with pytest.raises(SeglogError):
            seglog.scan(where, topics="t", options={"kafkaConsumer.pollTimeoutMs": 300})
        if broker.security.uses_sasl:
            wrong = broker.client_properties("alice", password="wrong", style="java")
            del wrong["bootstrap.servers"]
            with pytest.raises(AuthenticationFailedError, match="SASL_AUTHENTICATION_FAILED"):
                seglog.scan(where, topics="t", options=wrong)


def test_a_mount_that_goes_away_is_replaced_by_the_broker(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path / "data") as broker:
        broker.create_topic("t", config={"internal.segment.bytes": "100000"})
        produce(broker, "t", [b"v" * 1000] * 500)
        mount = tmp_path / "mount"
        mount.symlink_to(tmp_path / "data")
        scan = seglog.scan(broker.bootstrap, topics="t", directory=str(mount))
        assert scan.read_all().num_rows == 500
        mount.unlink()
        with pytest.warns(UserWarning, match="read through the brokers, not from"):
            assert scan.read_all().num_rows == 500


# Arguments


def test_what_cannot_be_is_refused_at_once_and_names_the_option(broker: Broker) -> None:
    where = broker.bootstrap
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"topics": "nix"}, UnknownTopicError, f"{where}: there is no topic 'nix'; existing: empty, t"),
        ({"partitions": {"t": [7]}}, UnknownTopicError, "there is no partition t-7"),
        ({"topics": "t", "partitions": {"t": [0]}}, InvalidConfigError, "topics and partitions exclude each other"),
        ({"topics": []}, InvalidConfigError, "topics is empty"),
        ({"columns": ["size"]}, InvalidConfigError, "no column 'size'"),
        ({"columns": ["key", "key"]}, InvalidConfigError, "names a column twice"),
        ({"since": "yesterday"}, InvalidConfigError, "since is 'yesterday': it must be a time"),
        ({"since": "2013-07-04", "start": 5}, InvalidConfigError, "start and since exclude each other"),
        ({"until": datetime.fromisoformat("2013-07-04")}, InvalidConfigError, "has no time zone"),
        ({"start": {"t": {9: 1}}}, UnknownTopicError, "no partition 9 of topic 't'"),
        ({"threads": 0}, InvalidConfigError, "threads is at least 1"),
        ({"options": {"startingOffset": 1}}, InvalidConfigError, "no 'startingOffset'; did you mean startingOffsets"),
        ({"options": {"security.protocl": "SSL"}}, InvalidConfigError, "did you mean security.protocol"),
        ({"options": {"security.protocol": "TLS"}}, InvalidConfigError, "option kafka.security.protocol"),
        ({"options": {"columns": "key"}}, InvalidConfigError, "give the argument columns instead"),
        ({"options": {"maxOffsetsPerTrigger": 1}}, InvalidConfigError, "is for Spark"),
        ({"options": {"startingOffsets": "latest"}}, InvalidConfigError, "would leave nothing to read"),
        ({"topics": "t", "options": {"assign": "{}"}}, InvalidConfigError, "but not both"),
        ({"format_options": {"valueSchema": "n int"}}, InvalidConfigError, "no effect without valueFormat"),
    ]
    for arguments, kind, reason in wrong:
        with pytest.raises(kind, match=reason):
            seglog.scan(where, **arguments)
    with pytest.raises(InvalidConfigError, match="directory is for files beside brokers"):
        seglog.scan(broker.data_dir, directory=broker.data_dir)
    with pytest.raises(RequestFailedError, match=r"no broker answers at 127\.0\.0\.1:1: Connection refused"):
        seglog.scan("127.0.0.1:1", topics="t")
    with pytest.raises(InvalidConfigError, match="does not exist"):
        seglog.scan("nowhere")


def test_a_file_named_like_a_broker_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with seglog.open("host:9092") as directory:
        directory.create_topic("t")
        directory.log("t").append_records([seglog.NewRecord(b"v")])
    assert seglog.scan("host:9092").read_all().num_rows == 1


def test_typed_values_and_permissive_mode(broker: Broker) -> None:
    broker.create_topic("typed", records=[json.dumps({"n": 1}).encode(), b"bad", json.dumps({"n": 2}).encode()])
    options: dict[str, Any] = {"value_format": "json", "format_options": {"valueSchema": "n bigint"}}
    scan = seglog.scan(broker.bootstrap, topics="typed", permissive=True, **options)
    assert scan.read_all().column("value").to_pylist() == [{"n": 1}, None, {"n": 2}]
    assert scan.read_all().column("valueBytes").to_pylist() == [None, b"bad", None]
    strict = seglog.scan(broker.bootstrap, topics="typed", **options).with_value_fields()
    assert strict.schema.names[-1] == "n"
    with pytest.raises(Exception, match="topic typed, partition 0, offset 1: the value cannot be decoded"):
        strict.read_all()
    assert strict.narrowed(["offset"]).read_all().num_rows == 3  # the value is not decoded
