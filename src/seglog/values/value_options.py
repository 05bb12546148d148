"""The options that say how keys and values are read and written. Pure.

The names are the same for Spark, for `seglog.scan` and for `seglog consume`; `docs/values.md` explains them.
"""

from __future__ import annotations

import json
import os.path
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from seglog.core.errors import InvalidConfigError
from seglog.core.suggestions import did_you_mean
from seglog.values.schemas import AVRO, JSON, PROTOBUF

ColumnName = Literal["key", "value"]
COLUMNS: Final[tuple[ColumnName, ...]] = ("value", "key")
KINDS: Final = {"json": JSON, "avro": AVRO, "protobuf": PROTOBUF}
TOPIC_NAME: Final = "TopicName"
RECORD_NAME: Final = "RecordName"
TOPIC_RECORD_NAME: Final = "TopicRecordName"
STRATEGIES: Final = (TOPIC_NAME, RECORD_NAME, TOPIC_RECORD_NAME)
FRAMINGS: Final = ("plain", "confluent", "apicurio", "header")
REGISTRY_PREFIX: Final = "schema.registry."
_BY_COLUMN: Final = (
    "Format",
    "Schema",
    "References",
    "Framing",
    "Subject",
    "SubjectStrategy",
    "RecordName",
    "SchemaId",
)
_OF_REGISTRY: Final = {
    "url": "urls",
    "basic.auth.user.info": "user_info",
    "basic.auth.user.info.file": "user_info_file",
    "bearer.auth.token": "bearer_token",
    "bearer.auth.token.file": "bearer_token_file",
    "ssl.ca.location": "ca_location",
    "ssl.certificate.location": "certificate_location",
    "ssl.key.location": "key_location",
}
NAMES: Final = (
    *(f"{column}{name}" for column in COLUMNS for name in _BY_COLUMN),
    *(REGISTRY_PREFIX + name for name in _OF_REGISTRY),
)
"""All options."""
SECRETS: Final = frozenset({REGISTRY_PREFIX + "basic.auth.user.info", REGISTRY_PREFIX + "bearer.auth.token"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryConfig:
    """Where a registry is, and who asks. Secrets are not shown; a ``…_file`` is read on the machine that asks."""

    urls: tuple[str, ...]
    user_info: str | None = field(default=None, repr=False)
    user_info_file: str | None = None
    bearer_token: str | None = field(default=None, repr=False)
    bearer_token_file: str | None = None
    ca_location: str | None = None
    certificate_location: str | None = None
    key_location: str | None = None
    timeout: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnFormat:
    """How one column is read or written. ``kind`` is AVRO, JSON or PROTOBUF; ``schema`` a text or a file's path, and
    ``references`` the names and texts of the schemas that a text refers to, each after those that it needs;
    ``subject`` overrides ``strategy``; ``record_name`` names the record or message; ``schema_id`` is for writing."""

    column: ColumnName
    kind: str
    schema: str | None
    framing: str
    subject: str | None
    strategy: str
    record_name: str | None
    schema_id: int | None = None
    references: tuple[tuple[str, str], ...] = ()


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
    given = {name: lower[name.lower()] for name in NAMES if name.lower() in lower}
    for name, value in given.items():
        if not value:
            raise InvalidConfigError(f"option {name} is empty")
    registry = _registry(given)
    columns = tuple(found for column in COLUMNS if (found := _column(column, given, registry)) is not None)
    if registry is not None and not columns:
        raise InvalidConfigError("option schema.registry.url has no effect without valueFormat or keyFormat")
    return ValueOptions(columns=columns, registry=registry)


def _column(column: ColumnName, given: Mapping[str, str], registry: RegistryConfig | None) -> ColumnFormat | None:
    values = {name: given[f"{column}{name}"] for name in _BY_COLUMN if f"{column}{name}" in given}
    if "Format" not in values:
        if values:
            raise InvalidConfigError(f"option {column}{next(iter(values))} has no effect without {column}Format")
        return None
    kind = _choice(f"{column}Format", values["Format"], KINDS)
    default = "plain" if registry is None else "confluent"
    framing = _choice(f"{column}Framing", values.get("Framing", default), FRAMINGS)
    made = ColumnFormat(
        column=column,
        kind=KINDS[kind],
        schema=values.get("Schema"),
        framing=framing,
        subject=values.get("Subject"),
        strategy=_choice(f"{column}SubjectStrategy", values.get("SubjectStrategy", TOPIC_NAME), STRATEGIES),
        record_name=values.get("RecordName"),
        schema_id=_number(f"{column}SchemaId", values.get("SchemaId")),
        references=_references(f"{column}References", values.get("References")),
    )
    if made.references and made.schema is None:
        raise InvalidConfigError(f"option {column}References has no effect without {column}Schema")
    if registry is None:
        if framing != "plain" and made.kind == AVRO:
            raise InvalidConfigError(
                f"option {column}Framing is {framing!r}: the ids stand for schemas of a registry; set "
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


def _registry(given: Mapping[str, str]) -> RegistryConfig | None:
    found: dict[str, Any] = {
        field: given[REGISTRY_PREFIX + name] for name, field in _OF_REGISTRY.items() if REGISTRY_PREFIX + name in given
    }
    if not found:
        return None
    if "urls" not in found:
        first = next(name for name in given if name.startswith(REGISTRY_PREFIX))
        raise InvalidConfigError(f"option {first} needs schema.registry.url")
    urls = tuple(url.strip().rstrip("/") for url in found["urls"].split(",") if url.strip())
    for url in urls:
        scheme, slashes, rest = url.partition("://")
        if scheme not in ("http", "https") or not slashes or not rest:
            raise InvalidConfigError("option schema.registry.url must be http://… or https://…, several with commas")
        if "@" in rest.split("/")[0]:
            raise InvalidConfigError(
                "option schema.registry.url has a user: set schema.registry.basic.auth.user.info.file instead"
            )
    secrets = [name for name in ("user_info", "user_info_file", "bearer_token", "bearer_token_file") if name in found]
    if len(secrets) > 1:
        names = [REGISTRY_PREFIX + name for name, field in _OF_REGISTRY.items() if field in secrets]
        raise InvalidConfigError(f"options {' and '.join(names)} exclude each other: give one of them")
    if "key_location" in found and "certificate_location" not in found:
        raise InvalidConfigError(
            "option schema.registry.ssl.key.location needs schema.registry.ssl.certificate.location"
        )
    return RegistryConfig(**{**found, "urls": urls})


def _choice(name: str, value: str, allowed: Any) -> str:
    for word in allowed:
        if value.lower() == word.lower():
            return str(word)
    raise InvalidConfigError(f"option {name} is {value!r}: {' or '.join(allowed)}{did_you_mean(value, allowed)}")


def _number(name: str, value: str | None) -> int | None:
    if value is None:
        return None
    if not value.isdecimal():
        raise InvalidConfigError(f"option {name} is {value!r}: it must be the number of a schema")
    return int(value)


def _references(name: str, value: str | None) -> tuple[tuple[str, str], ...]:
    try:
        found = {} if value is None else json.loads(value)
    except ValueError as error:
        raise InvalidConfigError(f"option {name} is not JSON: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise InvalidConfigError(f"option {name} must be a JSON object of the texts of schemas by their names")
    return tuple(found.items())


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
    """The value of the option ``deadLetter``. `InvalidConfigError` unless it is the absolute path of a directory."""
    path = text.removeprefix("file://").removeprefix("file:")
    if not os.path.isabs(path):
        raise InvalidConfigError(
            f"option deadLetter is {text!r}: it must be the absolute path of a directory; topics are not supported as "
            "dead letters"
        )
    return path
