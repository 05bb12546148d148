from __future__ import annotations

import pytest

from seglog.core.errors import InvalidConfigError
from seglog.core.types import TopicPartition
from seglog.spark.offsets import EARLIEST, LATEST
from seglog.spark.options import Assign, Subscribe, SubscribePattern, parse_options

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


def test_what_spark_adds_to_a_table_is_left_alone_and_kafka_options_are_noted() -> None:
    options = parse_options(
        {
            **PATH,
            "owner": "me",
            "provider": "seglog",
            "option.subscribe": "t",
            "kafka.group.id": "g",
            "kafka.bootstrap.servers": "b:9092",
        }
    )
    assert options.notes == ("seglog reads files, no broker: ignored kafka.bootstrap.servers, kafka.group.id",)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "option path is missing"),
        ({"subscribe": "a"}, "option path is missing: a log directory, a partition's directory, or a glob"),
        ({"path": " "}, "option path is empty"),
        ({"paths": "[]"}, "a JSON list as in"),
        ({"paths": "/a"}, "a JSON list as in"),
        ({**PATH, "startingOffset": "earliest"}, "unknown option 'startingOffset'; did you mean startingOffsets?"),
        ({**PATH, "includeheader": "true"}, "unknown option 'includeheader'; did you mean includeHeaders?"),
        ({**PATH, "subscribe": "a", "assign": '{"a": [0]}'}, "options subscribe and assign exclude each other"),
        ({**PATH, "subscribe": " , "}, "no topic in it"),
        ({**PATH, "subscribe": "a b"}, "option subscribe: topic name 'a b' is not legal"),
        ({**PATH, "subscribePattern": "("}, "option subscribePattern is '(': no regular expression"),
        ({**PATH, "assign": "a"}, "option assign is 'a': not JSON"),
        ({**PATH, "assign": "[1]"}, "a JSON object"),
        ({**PATH, "assign": "{}"}, "no partition in it"),
        ({**PATH, "assign": '{"a": ["0"]}'}, "option assign, topic 'a'"),
        ({**PATH, "assign": '{"a": [true]}'}, "option assign, topic 'a'"),
        ({**PATH, "assign": '{"a": [-1]}'}, "option assign, topic 'a'"),
        ({**PATH, "startingOffsets": "latest"}, "startingOffsets: latest (-1) would leave nothing to read"),
        ({**PATH, "startingOffsets": '{"a": {"0": -1}}'}, "startingOffsets: latest (-1)"),
        ({**PATH, "endingOffsets": "earliest"}, "endingOffsets: earliest (-2)"),
        ({**PATH, "endingOffsets": '{"a": {"0": -2}}'}, "endingOffsets: earliest (-2)"),
        ({**PATH, "endingOffsets": '{"a": {"0": -3}}'}, "'0': -3 is not as in"),
        ({**PATH, "endingOffsets": '{"a": {"x": 1}}'}, "'x': 1 is not as in"),
        ({**PATH, "endingOffsets": '{"a": {"0": true}}'}, "'0': True is not as in"),
        ({**PATH, "endingOffsets": '{"a": [1]}'}, "offsets of partitions as in"),
        ({**PATH, "endingOffsets": "[" * 100_000}, "not JSON"),
        ({**PATH, "includeHeaders": "yes"}, "option includeHeaders is 'yes': true or false"),
        ({**PATH, "minPartitions": "0"}, "option minPartitions is '0': a whole number above 0"),
        ({**PATH, "minPartitions": "many"}, "a whole number above 0"),
        ({**PATH, "maxBytesPerPartition": "0"}, "above 0"),
        ({**PATH, "maxBytesPerPartition": "1 TB"}, "bytes, as in 134217728 or 128m"),
    ],
)
def test_what_is_refused_is_named(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfigError) as refused:
        parse_options(given)
    assert message in str(refused.value)
