from __future__ import annotations

import pytest

from seglog.core.errors import InvalidConfigError
from seglog.core.settings import UnfitError
from seglog.values.value_options import dead_letter_directory, parse_value_options, subject_of

URL = {"schema.registry.url": "http://localhost:8081"}


def test_defaults_with_and_without_a_registry() -> None:
    (value,) = parse_value_options({"valueformat": "AVRO", "valueschema": '"int"'}).columns
    assert (value.column, value.kind, value.framing, value.strategy) == ("value", "AVRO", "plain", "TopicName")
    both = parse_value_options({"keyFormat": "json", "valueFormat": "protobuf", **URL})
    assert [(one.column, one.framing) for one in both.columns] == [("value", "confluent"), ("key", "confluent")]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"valueFormat": "xml"}, "option valueFormat is 'xml': json or avro or protobuf"),
        ({"valueFormat": "avro"}, "needs valueSchema or schema.registry.url"),
        ({"valueSchema": "a int"}, "option valueSchema has no effect without valueFormat"),
        ({"valueFormat": " "}, "option valueFormat is empty"),
        (URL, "no effect without valueFormat or keyFormat"),
        ({"valueFormat": "avro", "valueSchema": '"int"', "valueFraming": "confluent"}, "set schema.registry.url"),
        (
            {"valueFormat": "json", "valueSchema": "a int", "valueSubject": "s"},
            "valueSubject needs schema.registry.url",
        ),
        ({"valueFormat": "avro", **URL, "valueSubjectStrategy": "RecordName"}, "set valueRecordName"),
        ({"valueFormat": "avro", "schema.registry.url": "localhost:8081"}, "must be http"),
        ({"valueFormat": "avro", "schema.registry.url": "http://me:secret@a"}, "basic.auth.user.info.file"),
        ({"valueFormat": "avro", "schema.registry.ssl.ca.location": "/a"}, "needs schema.registry.url"),
        (
            {
                "valueFormat": "avro",
                **URL,
                "schema.registry.basic.auth.user.info": "a:b",
                "schema.registry.bearer.auth.token": "t",
            },
            "exclude each other",
        ),
    ],
)
def test_invalid_options_are_refused_by_name(options: dict[str, str], reason: str) -> None:
    with pytest.raises(InvalidConfigError, match=reason) as error:
        parse_value_options(options)
    assert "secret" not in str(error.value)


def test_secrets_are_not_shown() -> None:
    options = {"valueFormat": "avro", **URL, "schema.registry.basic.auth.user.info": "me:secret"}
    assert "secret" not in repr(parse_value_options(options))


@pytest.mark.parametrize(
    ("strategy", "subject"), [("TopicName", "t-value"), ("recordname", "a.R"), ("TopicRecordName", "t-a.R")]
)
def test_subjects_are_confluents(strategy: str, subject: str) -> None:
    options = {"valueFormat": "avro", **URL, "valueSubjectStrategy": strategy, "valueRecordName": "a.R"}
    (value,) = parse_value_options(options).columns
    assert subject_of(value, "t") == subject


def test_dead_letters_go_to_a_directory() -> None:
    assert dead_letter_directory("file:///a/b") == "/a/b"
    with pytest.raises(UnfitError, match="topics are not supported"):
        dead_letter_directory("errors")
