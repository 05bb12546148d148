from __future__ import annotations

import pytest

from seglog.core.errors import InvalidConfigError
from seglog.core.types import TopicPartition
from seglog.sources.options.read_options import (
    EARLIEST,
    LATEST,
    OPTIONS,
    Assign,
    Subscribe,
    SubscribePattern,
    TimestampBound,
    parse_options,
)
from seglog.sources.options.rules import EVERY
from tests.sources.options.misspelled import answers

PATH = {"path": "/data"}


def test_defaults() -> None:
    options = parse_options(PATH)
    assert options.paths == ("/data",)
    assert (options.selection, options.starting, options.ending) == (None, EARLIEST, LATEST)
    assert (options.include_headers, options.min_partitions, options.max_bytes) == (False, None, 128 << 20)


def test_names_are_case_insensitive_and_values_are_parsed() -> None:
    options = parse_options(
        {
            "PATHS": '["/a", "/b/*"]',
            "subscribe": " flights , planes,flights",
            "startingoffsets": '{"flights": {"0": 12, "1": -2}}',
            "ENDINGOFFSETS": "Latest",
            "includeHEADERS": "TRUE",
            "minPartitions": "7",
            "maxbytesperpartition": "64 MB",
        }
    )
    assert options.paths == ("/a", "/b/*")
    assert options.selection == Subscribe(topics=("flights", "planes"))
    assert options.starting == {TopicPartition("flights", 0): 12, TopicPartition("flights", 1): EARLIEST}
    assert options.ending == LATEST
    assert options.include_headers
    assert (options.min_partitions, options.max_bytes) == (7, 64 << 20)


def test_selections() -> None:
    assert parse_options({**PATH, "subscribePattern": "fl.*"}).selection == SubscribePattern(pattern="fl.*")
    assign = parse_options({**PATH, "assign": '{"b": [1, 0, 1], "a": [3]}'}).selection
    assert assign == Assign(partitions=(TopicPartition("a", 3), TopicPartition("b", 0), TopicPartition("b", 1)))
    for nothing in ("{}", '{"a": []}'):
        assert parse_options({**PATH, "assign": nothing}).selection == Assign(partitions=())


def test_a_topic_may_have_one_word_for_all_partitions() -> None:
    options = parse_options(
        {
            **PATH,
            "startingOffsets": '{"a": "Earliest", "b": {"0": 1}, "c": " earliest "}',
            "endingOffsets": '{"a": {"0": 7, "1": 9}, "b": "LATEST", "c": "latest"}',
        }
    )
    every = {topic: TopicPartition(topic, EVERY) for topic in "abc"}
    assert options.starting == {every["a"]: EARLIEST, TopicPartition("b", 0): 1, every["c"]: EARLIEST}
    assert options.ending == {
        TopicPartition("a", 0): 7,
        TopicPartition("a", 1): 9,
        every["b"]: LATEST,
        every["c"]: LATEST,
    }


def test_accepts_sparks_table_options_and_notes_kafkas() -> None:
    options = parse_options(
        {
            **PATH,
            "owner": "me",
            "provider": "seglog",
            "option.subscribe": "t",
            "kafka.group.id": "g",
            "kafka.acks": "1",
        }
    )
    assert options.notes == ("seglog reads files and connects to no broker: it ignores kafka.acks, kafka.group.id",)


def test_a_path_and_brokers_together_are_read_from_both() -> None:
    both = {**PATH, "kafka.bootstrap.servers": "b:9092"}
    options = parse_options(both)
    assert options.paths == ("/data",)
    assert options.client is not None
    assert options.notes == ()
    for name, value in {"until": "logEnd", "replica": "1"}.items():
        with pytest.raises(InvalidConfigError, match=f"option {name} is for directories"):
            parse_options({**both, name: value})
    assert parse_options({**both, "view": "segments"}).view == "segments"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "option path is missing"),
        ({"subscribe": "a"}, "option path is missing: set it to a log directory, a partition's directory or a glob"),
        ({"path": " "}, "option path is empty"),
        ({"paths": "[]"}, "a JSON list, as in"),
        ({"paths": "/a"}, "a JSON list, as in"),
        ({**PATH, "startingOffset": "earliest"}, "unknown option 'startingOffset'; did you mean startingOffsets?"),
        ({**PATH, "includeheader": "true"}, "unknown option 'includeheader'; did you mean includeHeaders?"),
        ({"kafka.bootstrap.server": "b:1"}, "'kafka.bootstrap.server'; did you mean kafka.bootstrap.servers?"),
        ({**PATH, "kafka.bootstrap.server": "b:1"}, "did you mean kafka.bootstrap.servers?"),
        ({**PATH, "group.id": "g"}, "unknown option 'group.id'; did you mean kafka.group.id?"),
        ({**PATH, "Max.Poll.Records": "9"}, "unknown option 'Max.Poll.Records'; did you mean kafka.max.poll.records?"),
        ({**PATH, "auto.offset.reset": "latest"}, "unknown option 'auto.offset.reset': set option startingOffsets to"),
        ({**PATH, "topics": "t"}, "unknown option 'topics'; did you mean subscribe?"),
        ({**PATH, "kafka.heartbeat.ms": "9"}, "'kafka.heartbeat.ms'; did you mean kafka.heartbeat.interval.ms?"),
        ({**PATH, "startingOffsets": "lastest"}, "option startingOffsets is 'lastest': earliest or latest, or offsets"),
        ({**PATH, "subscribe": "a", "assign": '{"a": [0]}'}, "options subscribe and assign exclude each other"),
        ({**PATH, "subscribe": " , "}, "it names no topic"),
        ({**PATH, "subscribe": "a b"}, "option subscribe: topic name 'a b' is not legal"),
        ({**PATH, "subscribePattern": "("}, "option subscribePattern is '(', which is not a regular expression"),
        ({**PATH, "assign": "a"}, "option assign is 'a', which is not JSON"),
        ({**PATH, "assign": "[1]"}, "a JSON object"),
        ({**PATH, "assign": '{"a b": []}'}, "option assign: topic name 'a b' is not legal"),
        ({**PATH, "assign": '{"a": ["0"]}'}, "option assign, topic 'a'"),
        ({**PATH, "assign": '{"a": [true]}'}, "option assign, topic 'a'"),
        ({**PATH, "assign": '{"a": [-1]}'}, "option assign, topic 'a'"),
        ({**PATH, "startingOffsets": "latest"}, "startingOffsets: latest (-1) would leave nothing to read"),
        ({**PATH, "startingOffsets": '{"a": {"0": -1}}'}, "startingOffsets, topic 'a': latest (-1)"),
        ({**PATH, "startingOffsets": '{"a": {"0": 1}, "b": "Latest"}'}, "startingOffsets, topic 'b': latest (-1)"),
        ({**PATH, "endingOffsets": "earliest"}, "endingOffsets: earliest (-2)"),
        ({**PATH, "endingOffsets": '{"a": {"0": -2}}'}, "endingOffsets, topic 'a': earliest (-2)"),
        ({**PATH, "endingOffsets": '{"a": "earliest"}'}, "endingOffsets, topic 'a': earliest (-2)"),
        ({**PATH, "endingOffsets": '{"a": "newest"}'}, "endingOffsets, topic 'a': 'newest' is not valid: earliest or"),
        ({**PATH, "endingOffsets": '{"a": 5}'}, "option endingOffsets, topic 'a': it must have"),
        ({**PATH, "endingOffsets": '{"a": null}'}, "option endingOffsets, topic 'a': it must have"),
        ({**PATH, "endingOffsets": '{"a b": "latest"}'}, "option endingOffsets: topic name 'a b' is not legal"),
        ({**PATH, "endingOffsets": '{"a": {"0": "latest"}}'}, "topic 'a': '0': 'latest' is not valid"),
        (
            {**PATH, "endingOffsetsByTimestamp": '{"a": "latest"}'},
            "option endingOffsetsByTimestamp, topic 'a': it must",
        ),
        (
            {**PATH, "startingOffsets": '{"a": "earliest"}', "endingOffsets": '{"b": "latest"}'},
            "must name the same partitions; only one has topic 'a'",
        ),
        (
            {**PATH, "startingOffsets": '{"a": {"0": 1}, "b": "earliest"}', "endingOffsets": '{"b": {"0": 9}}'},
            "must name the same partitions; only one has a-0",
        ),
        ({**PATH, "endingOffsets": '{"a": {"0": -3}}'}, "'0': -3 is not valid"),
        ({**PATH, "endingOffsets": '{"a": {"x": 1}}'}, "'x': 1 is not valid"),
        ({**PATH, "endingOffsets": '{"a": {"0": true}}'}, "'0': True is not valid"),
        ({**PATH, "endingOffsets": '{"a": [1]}'}, "a value for each partition, as in"),
        ({**PATH, "endingOffsets": "[" * 100_000}, "not JSON"),
        ({**PATH, "includeHeaders": "yes"}, "option includeHeaders is 'yes': it must be true or false"),
        ({**PATH, "minPartitions": "0"}, "option minPartitions is '0': it must be a whole number of at least 1"),
        ({**PATH, "minPartitions": "many"}, "it must be a whole number of at least 1"),
        ({**PATH, "maxBytesPerPartition": "0"}, "above 0"),
        ({**PATH, "maxBytesPerPartition": "1 TB"}, "a size above 0, as in 134217728 or 128m"),
    ],
)
def test_refuses_wrong_options_by_name(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfigError) as refused:
        parse_options(given)
    assert message in str(refused.value)


def test_a_misspelled_word_is_answered_with_the_nearest() -> None:
    found = list(answers(OPTIONS, parse_options, path="/data", valueFormat="json", keyFormat="json"))
    assert len(found) >= 20
    assert [one for one in found if f"did you mean {one[0]}?" not in one[1]] == []


def test_bounds_by_the_connectors_precedence() -> None:
    by_offset = {**PATH, "startingOffsets": "earliest", "endingOffsets": "latest"}
    by_partition = {
        **by_offset,
        "startingOffsetsByTimestamp": '{"t": {"0": 5}}',
        "endingOffsetsByTimestamp": '{"t": {"0": 9}}',
        "startingOffsetsByTimestampStrategy": "LATEST",
    }
    t0 = TopicPartition("t", 0)
    options = parse_options(by_partition)
    assert options.starting == TimestampBound(timestamps={t0: 5}, strategy="latest")
    assert (options.ending.timestamps if isinstance(options.ending, TimestampBound) else None) == {t0: 9}
    options = parse_options({**by_partition, "startingTimestamp": " 3", "endingTimestamp": "7"})
    assert options.starting == TimestampBound(timestamps=3, strategy="latest")
    assert (options.ending.timestamps if isinstance(options.ending, TimestampBound) else None) == 7


def test_parses_the_options_that_the_connector_lacks() -> None:
    options = parse_options(
        {
            **PATH,
            "columns": '["offset", "value"]',
            "keyIn": '["a", "hex:00ff", "base64:AP8=", "text:hex:1", null]',
            "isolationLevel": "READ_COMMITTED",
            "includeControl": "true",
            "until": "logend",
            "mode": "PERMISSIVE",
            "failOnDataLoss": "false",
            "maxRecordsPerPartition": "10",
            "replica": "2",
            "parallelism": "64",
        }
    )
    assert options.columns == ("offset", "value")
    assert options.keys == (b"a", b"\x00\xff", b"hex:1", None)
    assert options.read_committed
    assert options.include_control
    assert (options.until, options.permissive, options.fail_on_data_loss) == ("logEnd", True, False)
    assert (options.max_records, options.replica, options.parallelism) == (10, "2", 64)
    assert parse_options({**PATH, "columns": "offset, value"}).columns == ("offset", "value")
    assert parse_options({**PATH, "keyEquals": "käse"}).keys == ("käse".encode(),)
    assert parse_options({**PATH, "keyIn": "[]"}).keys == ()


@pytest.mark.parametrize("stream", [False, True])
def test_honours_the_connectors_isolation_level(stream: bool) -> None:
    options = parse_options({**PATH, "kafka.isolation.level": "read_committed"}, stream=stream)
    assert (options.read_committed, options.notes) == (True, ())
    both = {**PATH, "isolationLevel": "read_committed", "kafka.isolation.level": "Read_Committed"}
    assert parse_options(both, stream=stream).read_committed


def test_a_stream_has_a_start_at_the_end_and_no_end() -> None:
    options = parse_options({**PATH, "maxOffsetsPerTrigger": "100", "maxTriggerDelay": "2m"}, stream=True)
    assert (options.starting, options.notes) == (LATEST, ())
    assert (options.max_offsets_per_trigger, options.max_trigger_delay_ms) == (100, 120_000)
    for name in ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"):
        value = {"endingOffsets": "latest", "endingTimestamp": "1"}.get(name, '{"t": {"0": 1}}')
        with pytest.raises(InvalidConfigError, match=f"option {name}: a stream has no end"):
            parse_options({**PATH, name: value}, stream=True)


def test_a_batch_query_notes_options_of_streams_and_brokers() -> None:
    options = parse_options({**PATH, "maxOffsetsPerTrigger": "1", "groupIdPrefix": "g", "kafka.group.id": "h"})
    assert options.notes == (
        "seglog reads files and connects to no broker: it ignores kafka.group.id, groupIdPrefix",
        "option maxOffsetsPerTrigger is ignored in a batch query",
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kafka.auto.offset.reset": "latest"}, "option kafka.auto.offset.reset is not supported: set option starting"),
        ({"checkpointLocation": "/c"}, "option checkpointLocation is not supported: it is one of writeStream"),
        ({"kafka.key.deserializer": "x"}, "not supported"),
        ({"kafka.value.deserializer": "x"}, "not supported"),
        ({"KAFKA.enable.auto.commit": "true"}, "not supported"),
        ({"kafka.interceptor.classes": "x"}, "not supported"),
        ({"keyEquals": "a", "keyIn": '["b"]'}, "options keyEquals and keyIn exclude each other"),
        ({"keyEquals": "hex:0"}, "write text:hex:0"),
        ({"keyEquals": "base64:?"}, "write text:base64:?"),
        ({"keyIn": "a"}, "a JSON list of keys"),
        ({"keyIn": "[1]"}, "a JSON list of keys"),
        ({"columns": " , "}, "it names no column"),
        ({"until": "now"}, "option until is 'now': highWatermark or logEnd"),
        ({"mode": "dropMalformed"}, "failFast or permissive"),
        ({"isolationLevel": "serializable"}, "read_uncommitted or read_committed"),
        ({"kafka.isolation.level": "serializable"}, "option kafka.isolation.level is 'serializable': read_uncommitted"),
        (
            {"isolationLevel": "read_uncommitted", "kafka.isolation.level": "read_committed"},
            "options isolationLevel read_uncommitted and kafka.isolation.level read_committed contradict each other",
        ),
        ({"startingOffsetsByTimestampStrategy": "none"}, "error or latest"),
        ({"startingTimestamp": "2013-01-01"}, "a whole number of at least 0"),
        ({"startingTimestamp": "-1"}, "a whole number of at least 0"),
        ({"startingOffsetsByTimestamp": '{"a": {"0": -1}}'}, "'0': -1 is not valid"),
        ({"startingTimestamp": "9", "endingTimestamp": "8"}, "startingTimestamp 9 is above endingTimestamp 8"),
        (
            {"startingOffsets": '{"a": {"0": 9}}', "endingOffsets": '{"a": {"0": 8}}'},
            "a-0: startingOffsets 9 is above endingOffsets 8",
        ),
        (
            {"startingOffsets": '{"a": {"0": 1}}', "endingOffsets": '{"a": {"0": 8, "1": 1}}'},
            "must name the same partitions; only one has a-1",
        ),
        (
            {"startingOffsetsByTimestamp": '{"a": {"0": 9}}', "endingOffsetsByTimestamp": '{"a": {"0": 8}}'},
            "a-0: startingOffsetsByTimestamp 9 is above endingOffsetsByTimestamp 8",
        ),
        ({"maxRecordsPerPartition": "0"}, "it must be a whole number of at least 1"),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "minOffsetsPerTrigger 5 is above"),
        ({"maxTriggerDelay": "soon"}, "a time, as in 500ms"),
        ({"subscribePattern": "[a-z&&[^b]]"}, "a character class inside of another"),
    ],
)
def test_refuses_wrong_filters_bounds_and_limits(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfigError) as refused:
        parse_options({**PATH, **given})
    assert message in str(refused.value)
