"""`docs/from-the-connector.md` has every option of Spark's connector, and says of each what the code does."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import pytest

from seglog.core.errors import InvalidConfigError
from seglog.sources.options import read_options
from seglog.sources.options.read_options import parse_options
from seglog.spark.write import write_options
from seglog.spark.write.write_options import parse_write_options

_PAGE: Final = (Path(__file__).parents[2] / "docs" / "from-the-connector.md").read_text()
_BROKER: Final = {"kafka.bootstrap.servers": "kafka:9092"}
_TOPIC: Final = {"subscribe": "t"}
_SOURCE: Final[Mapping[str, Mapping[str, str]]] = {
    "kafka.bootstrap.servers": _TOPIC,
    "subscribe": {"subscribe": "t"},
    "subscribePattern": {"subscribePattern": "t.*"},
    "assign": {"assign": '{"t": [0]}'},
    "startingOffsets": {**_TOPIC, "startingOffsets": "earliest"},
    "startingOffsetsByTimestamp": {**_TOPIC, "startingOffsetsByTimestamp": '{"t": {"0": 1}}'},
    "startingTimestamp": {**_TOPIC, "startingTimestamp": "1"},
    "startingOffsetsByTimestampStrategy": {**_TOPIC, "startingOffsetsByTimestampStrategy": "latest"},
    "endingOffsets": {**_TOPIC, "endingOffsets": "latest"},
    "endingOffsetsByTimestamp": {**_TOPIC, "endingOffsetsByTimestamp": '{"t": {"0": 1}}'},
    "endingTimestamp": {**_TOPIC, "endingTimestamp": "1"},
    "failOnDataLoss": {**_TOPIC, "failOnDataLoss": "false"},
    "minPartitions": {**_TOPIC, "minPartitions": "3"},
    "maxRecordsPerPartition": {**_TOPIC, "maxRecordsPerPartition": "3"},
    "maxOffsetsPerTrigger": {**_TOPIC, "maxOffsetsPerTrigger": "3"},
    "minOffsetsPerTrigger": {**_TOPIC, "minOffsetsPerTrigger": "3"},
    "maxTriggerDelay": {**_TOPIC, "maxTriggerDelay": "5m"},
    "includeHeaders": {**_TOPIC, "includeHeaders": "true"},
    "kafkaConsumer.pollTimeoutMs": {**_TOPIC, "kafkaConsumer.pollTimeoutMs": "1000"},
    "fetchOffset.numRetries": {**_TOPIC, "fetchOffset.numRetries": "5"},
    "fetchOffset.retryIntervalMs": {**_TOPIC, "fetchOffset.retryIntervalMs": "5"},
    "groupIdPrefix": {**_TOPIC, "groupIdPrefix": "p"},
    "kafka.group.id": {**_TOPIC, "kafka.group.id": "g"},
    "kafka.auto.offset.reset": {**_TOPIC, "kafka.auto.offset.reset": "latest"},
    "kafka.key.deserializer": {**_TOPIC, "kafka.key.deserializer": "x"},
    "kafka.value.deserializer": {**_TOPIC, "kafka.value.deserializer": "x"},
    "kafka.enable.auto.commit": {**_TOPIC, "kafka.enable.auto.commit": "true"},
    "kafka.interceptor.classes": {**_TOPIC, "kafka.interceptor.classes": "x"},
    "kafka.*": {**_TOPIC, "kafka.client.rack": "a"},
}
"""Every option of ``KafkaSourceProvider.scala`` (Spark 4.3) that a reader may set, with a value."""
_SINK: Final[Mapping[str, Mapping[str, str]]] = {
    "kafka.bootstrap.servers": {"topic": "t"},
    "topic": {"topic": "t"},
    "includeHeaders": {"topic": "t", "includeHeaders": "true"},
    "kafka.key.serializer": {"topic": "t", "kafka.key.serializer": "x"},
    "kafka.value.serializer": {"topic": "t", "kafka.value.serializer": "x"},
    "kafka.*": {"topic": "t", "kafka.compression.type": "zstd"},
}
"""The same for a writer."""


def table(title: str) -> dict[str, str]:
    """The verdict of the page on each option: same, differs, without effect or refused."""
    section = _PAGE.split(f"## {title}\n")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| `([^`]+)` \| ([^|]+?) \|", section, re.MULTILINE))


@pytest.mark.parametrize(("title", "options"), [("Options of the source", _SOURCE), ("Options of the sink", _SINK)])
def test_the_page_has_every_option_of_the_connector(title: str, options: Mapping[str, object]) -> None:
    assert table(title).keys() == options.keys()
    assert {*table(title).values()} <= {"same", "differs", "without effect", "refused"}


@pytest.mark.parametrize("name", _SOURCE)
def test_the_source_does_as_the_page_says(name: str) -> None:
    says = table("Options of the source")[name]

    def notes(options: Mapping[str, str]) -> str:
        return " ".join(parse_options(options, stream=name.endswith(("Trigger", "Delay"))).notes)

    check(says, name, {**_BROKER, **_SOURCE[name]}, notes)
    if says in ("same", "differs") and name != "kafka.*":
        assert name in read_options.OPTIONS


@pytest.mark.parametrize("name", _SINK)
def test_the_sink_does_as_the_page_says(name: str) -> None:
    says = table("Options of the sink")[name]
    if name == "includeHeaders":
        assert (says, write_options.OPTIONS[name].use) == ("without effect", "none")
    else:
        check(says, name, {**_BROKER, **_SINK[name]}, lambda options: " ".join(parse_write_options(options).ignored))


def check(says: str, name: str, options: Mapping[str, str], notes: Callable[[Mapping[str, str]], str]) -> None:
    if says == "refused":
        with pytest.raises(InvalidConfigError, match=re.escape(name)):
            notes(options)
    else:
        assert (name in notes(options)) == (says == "without effect")


def test_options_that_only_seglog_has_exist() -> None:
    section = _PAGE.split("## Options that only seglog has\n")[1]
    named = [name.partition("=")[0] for name in re.findall(r"`([\w=]+)`", section)]
    assert len(named) > 10
    assert [name for name in named if name not in read_options.OPTIONS and name not in write_options.OPTIONS] == []
