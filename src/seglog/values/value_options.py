"""The options that say how keys and values are read and written. Pure.

The names are the same for Spark, for `seglog.scan` and for `seglog consume`; `docs/values.md` explains them. The fields
of `ColumnFormat` and `RegistryConfig` are their only declaration.
"""

from __future__ import annotations

import json
import os.path
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from seglog.core.errors import InvalidConfigError
from seglog.core.settings import (
    Enumeration,
    Options,
    OptionValues,
    Parsed,
    Setting,
    UnfitError,
    int32,
    not_empty,
    one_of,
    setting,
    settings_of,
)
from seglog.values.schemas import AVRO, JSON, PROTOBUF

ColumnName = Literal["key", "value"]
COLUMNS: Final[tuple[ColumnName, ...]] = ("value", "key")
KINDS: Final = {"json": JSON, "avro": AVRO, "protobuf": PROTOBUF}
TOPIC_NAME: Final = "TopicName"
RECORD_NAME: Final = "RecordName"
TOPIC_RECORD_NAME: Final = "TopicRecordName"
PLAIN: Final = "plain"
CONFLUENT: Final = "confluent"
APICURIO: Final = "apicurio"
HEADER: Final = "header"
FRAMINGS: Final = (PLAIN, CONFLUENT, APICURIO, HEADER)
"""`seglog.values.framing` draws them."""
ONLY_WRITES: Final = "sink"
"""The use of options that only a sink has."""


def _urls(text: str) -> tuple[str, ...]:
    urls = tuple(url.strip().rstrip("/") for url in text.split(",") if url.strip())
    for url in urls:
        scheme, slashes, rest = url.partition("://")
        if scheme not in ("http", "https") or not slashes or not rest:
            raise UnfitError(" must be http://… or https://…, several with commas")
        if "@" in rest.split("/")[0]:
            raise UnfitError(" has a user: set schema.registry.basic.auth.user.info.file instead")
    return urls


def _references(text: str) -> tuple[tuple[str, str], ...]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UnfitError(f" is not JSON: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise UnfitError(" must be a JSON object of the texts of schemas by their names")
    return tuple(found.items())


_FILE: Final = Parsed("a file", not_empty)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryConfig:
    """Where a registry is, and who asks. Secrets are not shown; a ``…_file`` is read on the machine that asks."""

    urls: tuple[str, ...] = setting(
        Parsed("`http://…`, `https://…`, several with commas", _urls),
        "A registry with Confluent's API. Apicurio: `http://host:8080/apis/ccompat/v7`.",
        default=(),
        name="schema.registry.url",
    )
    user_info_file: str | None = setting(
        _FILE,
        "A file with `user:password`, on the driver and on each worker.",
        default=None,
        name="schema.registry.basic.auth.user.info.file",
    )
    user_info: str | None = setting(
        Parsed("`user:password`", not_empty),
        "The same in the plan; better use the file.",
        default=None,
        name="schema.registry.basic.auth.user.info",
        is_secret=True,
    )
    bearer_token_file: str | None = setting(
        _FILE, "A file with a token, likewise.", default=None, name="schema.registry.bearer.auth.token.file"
    )
    bearer_token: str | None = setting(
        Parsed("a token", not_empty),
        "The same in the plan; better use the file.",
        default=None,
        name="schema.registry.bearer.auth.token",
        is_secret=True,
    )
    ca_location: str | None = setting(
        _FILE,
        "The CA certificates to trust, as PEM.",
        default=None,
        name="schema.registry.ssl.ca.location",
        otherwise="the system's",
    )
    certificate_location: str | None = setting(
        _FILE, "The client's certificate, as PEM.", default=None, name="schema.registry.ssl.certificate.location"
    )
    key_location: str | None = setting(
        _FILE,
        "The client's key, as PEM.",
        default=None,
        name="schema.registry.ssl.key.location",
        otherwise="in the certificate's file",
    )
    timeout: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnFormat:
    """How one column is read or written. ``kind`` is AVRO, JSON or PROTOBUF; ``schema`` a text or a file's path, and
    ``references`` the names and texts of the schemas that a text refers to, each after those that it needs;
    ``subject`` overrides ``strategy``; ``record_name`` names the record or message; ``schema_id`` is for writing.

    An option's name is that of the column, and its name here."""

    column: ColumnName
    kind: str = setting(
        Enumeration(KINDS, ignores_case=True),
        "The column `value` has the type of the schema, not `binary`.",
        default="",
        name="Format",
        otherwise="bytes",
    )
    schema: str | None = setting(
        Parsed("a schema, or the path of a file that ends in `.avsc`, `.proto`, `.json` or `.ddl`", not_empty),
        "The schema to read or write with; for JSON, columns as in `a int, b struct<c: string>` or a JSON Schema.",
        default=None,
        name="Schema",
        otherwise="the registry's latest version of the subject",
    )
    references: tuple[tuple[str, str], ...] = setting(
        Parsed('JSON: `{"name": "schema", …}`', _references),
        "The schemas that the text in `valueSchema` refers to, each after those that it needs.",
        default=(),
        name="References",
    )
    framing: str = setting(
        one_of(*FRAMINGS),
        "What precedes a value: see [Framing](values.md#framing).",
        default=PLAIN,
        name="Framing",
        otherwise="`confluent` with a registry, else `plain`",
    )
    subject: str | None = setting(
        Parsed("a subject of the registry", not_empty),
        "Where the schema is registered.",
        default=None,
        name="Subject",
        otherwise="given by the strategy",
    )
    strategy: str = setting(
        one_of(TOPIC_NAME, RECORD_NAME, TOPIC_RECORD_NAME),
        "The subject is `<topic>-value` (`<topic>-key`), `<record>` or `<topic>-<record>`.",
        default=TOPIC_NAME,
        name="SubjectStrategy",
    )
    record_name: str | None = setting(
        Parsed("a full name", not_empty),
        "The record in the subject's name; if a Protobuf schema has several messages, the message to use.",
        default=None,
        name="RecordName",
    )
    schema_id: int | None = setting(
        int32(0), "Sink: the id of a registered schema to write with.", default=None, name="SchemaId", use=ONLY_WRITES
    )


_OF_COLUMN: Final = settings_of(ColumnFormat)
_OF_REGISTRY: Final = settings_of(RegistryConfig)


def _of(column: ColumnName) -> Iterator[Setting]:
    """The options of a column. Of the key's, documentation has one line."""
    for name, row in _OF_COLUMN.items():
        doc = row.doc
        if column == "key":
            doc = "The same for the column `key`; so are the other options that begin so." if name == "Format" else ""
        yield replace(row, name=f"{column}{name}", doc=doc, use=row.use or "values")


VALUE_OPTIONS: Final = Options(
    *_of("value"), *_of("key"), *(replace(row, use="values") for row in _OF_REGISTRY.values())
)
NAMES: Final = tuple(VALUE_OPTIONS)
"""All options."""
SECRETS: Final = frozenset(row.name for row in VALUE_OPTIONS.values() if row.is_secret)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueOptions:
    """The columns with a format, the value before the key, and the registry if there is one."""

    columns: tuple[ColumnFormat, ...] = ()
    registry: RegistryConfig | None = None

    def of(self, column: str) -> ColumnFormat | None:
        return next((one for one in self.columns if one.column == column), None)


NO_FORMATS: Final = ValueOptions()


def parse_value_options(options: Mapping[str, str]) -> ValueOptions:
    """Read the options among `NAMES`, in any case, and leave others alone. `InvalidConfigError` names the option.

    >>> parse_value_options({"valueFormat": "avro", "schema.registry.url": "http://localhost:8081"}).columns[0].framing
    'confluent'
    """
    lower = {key.lower(): value.strip() for key, value in options.items()}
    values = OptionValues(VALUE_OPTIONS)
    for name, row in VALUE_OPTIONS.items():
        if name.lower() in lower:
            if not lower[name.lower()]:
                raise InvalidConfigError(f"option {name} is empty")
            values.add(row, lower[name.lower()])
    registry = _registry(values)
    columns = tuple(found for column in COLUMNS if (found := _column(column, values, registry)) is not None)
    if registry is not None and not columns:
        raise InvalidConfigError("option schema.registry.url has no effect without valueFormat or keyFormat")
    return ValueOptions(columns=columns, registry=registry)


def _column(column: ColumnName, values: OptionValues, registry: RegistryConfig | None) -> ColumnFormat | None:
    rows = {row.attribute: f"{column}{name}" for name, row in _OF_COLUMN.items()}
    given: dict[str, Any] = {attribute: values[name] for attribute, name in rows.items() if name in values}
    if "kind" not in given:
        if given:
            raise InvalidConfigError(f"option {rows[next(iter(given))]} has no effect without {column}Format")
        return None
    made = ColumnFormat(column=column, **{"framing": PLAIN if registry is None else CONFLUENT, **given})
    if made.references and made.schema is None:
        raise InvalidConfigError(f"option {column}References has no effect without {column}Schema")
    if registry is None:
        if made.framing != PLAIN and made.kind == AVRO:
            raise InvalidConfigError(
                f"option {column}Framing is {made.framing!r}: the ids stand for schemas of a registry; set "
                "schema.registry.url"
            )
        if made.schema is None:
            raise InvalidConfigError(f"option {column}Format needs {column}Schema or schema.registry.url")
        if made.subject is not None:
            raise InvalidConfigError(f"option {column}Subject needs schema.registry.url")
    if made.strategy != TOPIC_NAME and made.subject is None and made.schema is None and made.record_name is None:
        raise InvalidConfigError(
            f"option {column}SubjectStrategy is {made.strategy}, whose subjects have the name of a record: "
            f"set {column}RecordName"
        )
    return made


def _registry(values: OptionValues) -> RegistryConfig | None:
    names = {row.attribute: name for name, row in _OF_REGISTRY.items() if name in values}
    if not names:
        return None
    if "urls" not in names:
        raise InvalidConfigError(f"option {next(iter(names.values()))} needs schema.registry.url")
    secrets = [
        names[one] for one in ("user_info", "user_info_file", "bearer_token", "bearer_token_file") if one in names
    ]
    if len(secrets) > 1:
        raise InvalidConfigError(f"options {' and '.join(secrets)} exclude each other: give one of them")
    if "key_location" in names and "certificate_location" not in names:
        raise InvalidConfigError(
            "option schema.registry.ssl.key.location needs schema.registry.ssl.certificate.location"
        )
    return RegistryConfig(**{attribute: values[name] for attribute, name in names.items()})


def subject_of(column: ColumnFormat, topic: str) -> str:
    """The subject of a topic's keys or values (Confluent's subject name strategies).

    >>> subject_of(parse_value_options({"keyFormat": "json", "schema.registry.url": "http://a"}).columns[0], "flights")
    'flights-key'
    """
    if column.subject is not None:
        return column.subject
    if column.strategy == TOPIC_NAME:
        return f"{topic}-{column.column}"
    assert column.record_name is not None
    return column.record_name if column.strategy == RECORD_NAME else f"{topic}-{column.record_name}"


def dead_letter_directory(text: str) -> str:
    """The value of the option ``deadLetter``. `UnfitError` unless it is the absolute path of a directory."""
    path = text.removeprefix("file://").removeprefix("file:")
    if not os.path.isabs(path):
        raise UnfitError(
            f" is {text!r}: it must be the absolute path of a directory; topics are not supported as dead letters"
        )
    return path
