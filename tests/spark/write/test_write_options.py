"""Options, columns and their combinations that the sink accepts."""

from __future__ import annotations

import pytest

from seglog.core.config import LogConfig
from seglog.core.errors import InvalidConfigError
from seglog.records.compression import Codec
from seglog.spark.write.write_options import (
    OPTIONS,
    AppTransaction,
    WriteOptions,
    check_columns,
    check_marks,
    check_mode,
    parse_write_options,
)
from seglog.values.value_options import NO_FORMATS
from tests.sources.options.misspelled import answers


def parse(**options: str) -> WriteOptions:
    return parse_write_options({"path": "/data", **{name.replace("__", "."): text for name, text in options.items()}})


def test_nothing_but_a_path() -> None:
    found = parse()
    assert (found.path, found.topic, found.topic_config, found.transaction) == ("/data", None, {}, None)
    assert (found.batch_size, found.codec(LogConfig())) == (16384, (Codec.NONE, None))


def test_everything() -> None:
    options = {
        "path": " /data ",
        "TOPIC": "flights",
        "includeheaders": "true",
        "compression.type": "ZSTD",
        "compression.level": "7",
        "batch.size": "65536",
        "bufferBytes": "1048576",
        "numPartitions": "4",
        "createTopics": '{"a": 2, "b": null}',
        "topic.segment.bytes": "1048576",
        "topic.cleanup.policy": "compact",
        "txnAppId": "nightly",
        "txnVersion": "20130107",
        "allowForeign": "true",
        "lingerSeconds": "0",
        "checkpointLocation": "/somewhere",
        "kafka.acks": "all",
        "kafka.bootstrap.servers": "localhost:9092",
    }
    assert parse_write_options(options) == WriteOptions(
        path="/data",
        brokers=None,
        topic="flights",
        compression=Codec.ZSTD,
        level=7,
        batch_size=65536,
        batch_size_given=True,
        buffer_bytes=1 << 20,
        num_partitions=4,
        create_topics={"a": 2, "b": None},
        topic_config={"segment.bytes": "1048576", "cleanup.policy": "compact"},
        transaction=AppTransaction(application="nightly", version=20130107),
        allow_foreign=True,
        linger_seconds=0,
        prefix="seglog",
        mark_topic="flights",
        txn_topic="seglog-txn-versions",
        fail_on_data_loss=True,
        formats=NO_FORMATS,
        ignored=("kafka.acks", "kafka.bootstrap.servers"),
    )


def test_options_of_kafkas_producer_count_as_the_connector_is_given_them() -> None:
    found = parse(kafka__compression__type="lz4", kafka__compression__lz4__level="3", kafka__batch__size="100")
    assert (found.compression, found.level, found.batch_size, found.ignored) == (Codec.LZ4, 3, 100, ())
    assert parse(compression__type="gzip", compression__zstd__level="3").level is None
    assert parse(createTopics="a, b").create_topics == {"a": None, "b": None}


@pytest.mark.parametrize(
    ("options", "config", "expected"),
    [
        ({"compression.type": "lz4"}, {}, (Codec.LZ4, None)),
        ({"compression.type": "lz4"}, {"compression.type": "zstd"}, (Codec.ZSTD, 3)),
        ({"compression.type": "zstd", "compression.level": "9"}, {"compression.type": "zstd"}, (Codec.ZSTD, 9)),
        ({"compression.type": "lz4"}, {"compression.type": "uncompressed"}, (Codec.NONE, None)),
        ({}, {"compression.type": "gzip", "compression.gzip.level": "5"}, (Codec.GZIP, 5)),
    ],
)
def test_a_topics_codec_overrides_the_option(
    options: dict[str, str], config: dict[str, str], expected: tuple[Codec, int | None]
) -> None:
    found = parse_write_options({"path": "/data", **options}).codec(LogConfig.from_mapping(config))
    assert found == expected


SERIALIZERS = [
    ({name: "org.apache.kafka.common.serialization.StringSerializer"}, f"option {name} is not supported: ")
    for name in ("kafka.key.serializer", "kafka.value.serializer", "KAFKA.Value.Serializer")
]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topik": "t"}, "unknown option 'topik'; did you mean topic?"),
        ({"kafka.bootstrap.server": "b:1"}, "'kafka.bootstrap.server'; did you mean kafka.bootstrap.servers?"),
        *SERIALIZERS,
        ({"topic": "a/b"}, "option topic: topic name 'a/b' is not legal"),
        ({"topic": " "}, "option topic is empty"),
        ({"path": "s3://bucket"}, "a file system that all workers share"),
        ({"compression.type": "brotli"}, "option compression.type: compression 'brotli'"),
        ({"compression.level": "3"}, "option compression.level needs compression.type"),
        ({"compression.type": "gzip", "compression.level": "12"}, "gzip level 12"),
        ({"batch.size": "0"}, "option batch.size is '0'"),
        ({"numPartitions": "many"}, "option numPartitions is 'many'"),
        ({"topic.segment.byte": "1"}, "unknown option 'topic.segment.byte'; did you mean topic.segment.bytes?"),
        ({"topic.cleanup.policy": "compct,delete"}, "option topic.cleanup.policy='compct,delete' is not allowed"),
        ({"topic.cleanup.policy": "delete,compct"}, "; did you mean compact?"),
        ({"linger.ms": "1"}, "unknown option 'linger.ms'; did you mean kafka.linger.ms?"),
        ({"kafka.linger": "1"}, "unknown option 'kafka.linger'; did you mean kafka.linger.ms?"),
        ({"value.serializer": "x"}, "unknown option 'value.serializer': values are bytes or text: cast the column"),
        ({"topic.segment.bytes": "1"}, "option topic.segment.bytes='1' is not allowed"),
        ({"createTopics": "[1]"}, "option createTopics"),
        ({"createTopics": '{"t": 0}'}, "0 partitions for t"),
        ({"txnAppId": "app"}, "option txnAppId has no effect alone"),
        ({"txnVersion": "1"}, "option txnVersion has no effect alone"),
        ({"txnAppId": "app", "txnVersion": "-1"}, "option txnVersion is '-1'"),
        ({"includeHeaders": "maybe"}, "option includeHeaders is 'maybe'"),
    ],
)
def test_refuses_wrong_options_by_name(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfigError) as refused:
        parse_write_options({"path": "/data", **options})
    assert message in str(refused.value)


def test_a_path_is_required() -> None:
    with pytest.raises(InvalidConfigError, match="option path is missing"):
        parse_write_options({"topic": "t"})
    with pytest.raises(InvalidConfigError, match=r"did you mean kafka\.bootstrap\.servers"):
        parse_write_options({"topic": "t", "kafka.bootstrap.server": "b:1"})


def test_marks_need_a_topic() -> None:
    check_marks(through_brokers(topic="t"))
    check_marks(through_brokers(markTopic="m"))
    check_marks(through_brokers(delivery="at-least-once"))
    with pytest.raises(InvalidConfigError, match="option markTopic is missing: with the column topic"):
        check_marks(through_brokers())


def test_a_misspelled_word_is_answered_with_the_nearest() -> None:
    found = list(answers(OPTIONS, parse_write_options, path="/data", valueFormat="json", keyFormat="json"))
    assert len(found) >= 20
    assert [one for one in found if f"did you mean {one[0]}?" not in one[1]] == []


def through_brokers(**options: str) -> WriteOptions:
    named = {name.replace("__", "."): text for name, text in options.items()}
    return parse_write_options({"kafka.bootstrap.servers": "b:9092", **named})


def test_brokers_instead_of_a_path() -> None:
    found = through_brokers(topic="t", kafka__linger__ms="5")
    assert found.brokers is not None
    assert [str(one) for one in found.brokers.client.bootstrap] == ["b:9092"]
    assert (found.brokers.exactly_once, found.brokers.mark_topic, found.brokers.prefix) == (True, "t", "seglog")
    assert (found.batch_size, found.brokers.client.transaction_timeout) == (262144, 900)
    assert found.ignored == ("kafka.linger.ms",)


def test_options_for_brokers_are_parsed() -> None:
    found = through_brokers(
        markTopic="m",
        kafka__transaction__timeout__ms="5000",
        kafka__batch__size="1000",
        kafka__compression__type="zstd",
        transactionalIdPrefix="mine",
        failOnDataLoss="false",
    )
    assert found.brokers is not None
    assert (found.topic, found.brokers.mark_topic, found.brokers.prefix) == (None, "m", "mine")
    assert (found.batch_size, found.compression, found.brokers.client.transaction_timeout) == (1000, Codec.ZSTD, 5)
    assert not found.brokers.fail_on_data_loss
    assert found.brokers.txn_topic is None
    named = {"txnAppId": "a", "txnVersion": "1"}
    for options, topic in (({}, "seglog-txn-versions"), ({"transactionalIdPrefix": "p"}, "p-txn-versions")):
        assert (brokers := through_brokers(topic="t", **named, **options).brokers) is not None
        assert brokers.txn_topic == topic
    assert (brokers := through_brokers(topic="t", txnTopic="v", transactionalIdPrefix="ä", **named).brokers) is not None
    assert brokers.txn_topic == "v"
    once = through_brokers(delivery="at-least-once", kafka__acks="1").brokers
    assert once is not None
    assert (once.exactly_once, once.client.enable_idempotence, once.mark_topic) == (False, False, None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "t", "numPartitions": "2"}, "option numPartitions is for directories"),
        ({"topic": "t", "topic.retention.ms": "2"}, "option topic.retention.ms is for directories"),
        ({"topic": "t", "kafka.acks": "1"}, "it needs kafka.acks=all"),
        ({"topic": "t", "kafka.acks": "0", "delivery": "at-least-once"}, "option kafka.acks is 0"),
        ({"topic": "t", "kafka.transactional.id": "x"}, "option kafka.transactional.id is not supported"),
        *SERIALIZERS,
        ({"topic": "t", "kafka.partitioner.class": "com.example.Mine"}, "is not supported: set the column partition"),
        ({"topic": "t", "kafka.akcs": "1"}, "unknown option 'kafka.akcs'; did you mean kafka.acks?"),
        ({"topic": "t", "delivery": "once"}, "option delivery is 'once'"),
        ({"topic": "t", "txnTopic": "a b"}, "option txnTopic: "),
        ({"topic": "t", "txnTopic": "t"}, "option txnTopic is 't', the topic of the rows"),
        (
            {"topic": "t", "transactionalIdPrefix": "a b", "txnAppId": "a", "txnVersion": "1"},
            "option txnTopic is missing: transactionalIdPrefix='a b' cannot begin the name of a topic",
        ),
        (
            {"topic": "t", "delivery": "at-least-once", "txnAppId": "a", "txnVersion": "1"},
            "option txnAppId needs delivery=exactly-once",
        ),
    ],
)
def test_options_that_brokers_do_not_support_are_refused_by_name(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfigError) as refused:
        parse_write_options({"kafka.bootstrap.servers": "b:9092", **options})
    assert message in str(refused.value)


def test_options_of_brokers_are_ignored_with_a_path() -> None:
    assert parse(delivery="at-least-once").ignored == ("delivery",)


HEADERS = "array<struct<key:string,value:binary>>"


@pytest.mark.parametrize(
    ("columns", "topic"),
    [
        ({"value": "binary"}, "t"),
        ({"value": "string", "topic": "string"}, None),
        ({"value": "string", "Topic": "int", "other": "int", "OTHER": "int", "Value": "int"}, "t"),
        ({"value": "string", "topic": "int"}, "t"),  # the option goes first: the column is not looked at
        ({"key": "string collate UNICODE", "value": "binary", "partition": "int", "headers": HEADERS}, "t"),
        ({"value": "binary", "timestamp": "timestamp", "other": "map<int,int>", "headers": "array<void>"}, "t"),
    ],
)
def test_columns_that_can_be_written(columns: dict[str, str], topic: str | None) -> None:
    check_columns(columns, topic)


@pytest.mark.parametrize(
    ("columns", "topic", "message"),
    [
        ({"value": "binary"}, None, "no column topic: add it, or set the option topic"),
        ({"key": "binary"}, "t", "no column value; it has key"),
        (
            {"KEY": "binary", "VALUE": "binary"},
            "t",
            "column KEY would not be written, because the sink's column is key",
        ),
        ({"Key": "binary", "value": "binary"}, "t", "withColumnRenamed('Key', 'key') or SELECT Key AS key, or drop it"),
        ({"value": "binary", "Topic": "string"}, None, "column Topic would not be written"),
        ({"value": "int"}, "t", "column value is int: it must be string or binary"),
        ({"value": "binary", "key": "bigint"}, "t", "column key is bigint"),
        ({"value": "binary", "topic": "binary"}, None, "column topic is binary: it must be string"),
        ({"value": "binary", "partition": "bigint"}, "t", "column partition is bigint: it must be int"),
        ({"value": "binary", "headers": "map<string,binary>"}, "t", "column headers is map<string,binary>"),
        ({"value": "binary", "timestamp": "bigint"}, "t", "column timestamp is bigint"),
    ],
)
def test_columns_that_cannot(columns: dict[str, str], topic: str | None, message: str) -> None:
    with pytest.raises(InvalidConfigError) as refused:
        check_columns(columns, topic)
    assert message in str(refused.value)


def test_a_log_is_not_overwritten() -> None:
    check_mode(overwrite=False)
    with pytest.raises(InvalidConfigError, match=r"\.mode\('append'\)"):
        check_mode(overwrite=True)
