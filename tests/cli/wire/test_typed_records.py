"""`seglog consume` of values with schemas."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from seglog.testing import Broker, TopicRecord
from seglog.values.registry import Registry
from seglog.values.value_options import RegistryConfig
from tests.cli.run import Run
from tests.values.avro.test_decoder import encode

SCHEMA: Any = {
    "type": "record",
    "name": "F",
    "fields": [{"name": "n", "type": "int"}, {"name": "raw", "type": ["null", "bytes"]}],
}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(registry=True) as broker:
        number = Registry(RegistryConfig(urls=(broker.registry_url,))).register("f-value", "AVRO", json.dumps(SCHEMA))
        frame = b"\0" + number.to_bytes(4, "big")
        values = [frame + encode(SCHEMA, {"n": 5, "raw": b"hi"}), None, frame + encode(SCHEMA, {"n": 6, "raw": None})]
        broker.create_topic("f", records=[TopicRecord(value, key="k") for value in values])
        broker.create_topic("g", records=[b"plain"])
        broker.create_topic("micros", records=[encode("long", 1_790_000_000_000_000)])
        yield broker


def test_avro_is_shown_as_json(run: Run, broker: Broker) -> None:
    place = ("-b", broker.bootstrap, "-e", "--value-format", "avro", "--registry", broker.registry_url)
    ran = run("consume", "f", *place, "-K", ":", "--null", "NULL")
    assert (ran.code, ran.err) == (0, "")
    assert ran.lines == ['k:{"n":5,"raw":"aGk="}', "k:NULL", 'k:{"n":6}']
    assert [one["value"] for one in run("consume", "f", *place, "--json").objects] == [
        {"n": 5, "raw": "aGk="},
        None,
        {"n": 6},
    ]


def test_a_value_that_is_not_avro_ends_with_its_place(run: Run, broker: Broker) -> None:
    option = ("--format-option", 'valueSchema="long"', "--format-option", "valueFraming=plain")
    ran = run("consume", "g", "-b", broker.bootstrap, "-e", "--value-format", "avro", *option)
    assert ran.code == 2
    assert "topic g, partition 0, offset 0: the value cannot be decoded: " in ran.err


def test_a_timestamp_beyond_the_calendar_is_shown(run: Run, broker: Broker) -> None:
    schema = json.dumps({"type": "long", "logicalType": "timestamp-millis"})
    options = ("--format-option", f"valueSchema={schema}", "--format-option", "valueFraming=plain")
    ran = run("consume", "micros", "-b", broker.bootstrap, "-e", "--value-format", "avro", *options)
    assert (ran.code, ran.err) == (0, "")
    assert ran.lines == ['"+58692-11-03T14:13:20Z"']


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--registry", "http://a"), "--registry and --format-option need --value-format"),
        (("--value-format", "avro"), "needs valueSchema or schema.registry.url"),
        (("--value-format", "xml"), "--value-format must be text, json, hex, base64, avro or protobuf, not xml"),
        (("--key-format", "avro", "--format-option", "x"), "'x' is not KEY=VALUE"),
    ],
)
def test_options_that_cannot_be(run: Run, broker: Broker, arguments: tuple[str, ...], reason: str) -> None:
    ran = run("consume", "f", "-b", broker.bootstrap, "-e", *arguments)
    assert ran.code != 0
    assert reason in ran.err
