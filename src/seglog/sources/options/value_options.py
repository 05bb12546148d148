"""The rows of the options for typed keys and values; `seglog.values.value_options` parses and checks them."""

from __future__ import annotations

from typing import Final

from seglog.sources.options import option as text
from seglog.sources.options.option import Option

_FORMATS: Final = "`json`, `avro`, `protobuf`"
_SCHEMA: Final = "a schema, or the path of a file that ends in `.avsc`, `.proto`, `.json` or `.ddl`"
_SUBJECT: Final = "a subject of the registry"
_FRAMINGS: Final = "`plain`, `confluent`, `apicurio`, `header`"
_STRATEGIES: Final = "`TopicName`, `RecordName`, `TopicRecordName`"
_FILE: Final = "a file"


def _row(name: str, values: str, doc: str, default: str = "") -> Option:
    return Option(name, text.word, values, doc, default_text=default, use="values")


_COMMON: Final = (
    _row("valueFormat", _FORMATS, "The column `value` has the type of the schema, not `binary`.", "bytes"),
    _row("valueSchema", _SCHEMA, "The schema to read or write with; for JSON, columns as in `a int, b struct<c: "
         "string>` or a JSON Schema.", "the registry's latest version of the subject"),
    _row("valueReferences", "JSON: `{\"name\": \"schema\", …}`", "The schemas that the text in "
         "`valueSchema` refers to, each after those that it needs."),
    _row("valueFraming", _FRAMINGS, "What precedes a value: see [Framing](values.md#framing).",
         "`confluent` with a registry, else `plain`"),
    _row("valueSubject", _SUBJECT, "Where the schema is registered.", "given by the strategy"),
    _row("valueSubjectStrategy", _STRATEGIES, "The subject is `<topic>-value`, `<record>` or `<topic>-<record>`.",
         "`TopicName`"),
    _row("valueRecordName", "a full name", "The record in the subject's name; if a Protobuf schema has several "
         "messages, the message to use."),
    _row("keyFormat", _FORMATS, "The same for the column `key`; so are the next six options.", "bytes"),
    _row("keySchema", _SCHEMA, ""),
    _row("keyReferences", "JSON, likewise", ""),
    _row("keyFraming", _FRAMINGS, ""),
    _row("keySubject", _SUBJECT, ""),
    _row("keySubjectStrategy", _STRATEGIES, "The subject of `TopicName` is `<topic>-key`."),
    _row("keyRecordName", "a full name", ""),
    _row("schema.registry.url", "`http://…`, `https://…`, several with commas",
         "A registry with Confluent's API. Apicurio: `http://host:8080/apis/ccompat/v7`."),
    _row("schema.registry.basic.auth.user.info.file", _FILE, "A file with `user:password`, on the driver and on each "
         "worker."),
    _row("schema.registry.basic.auth.user.info", "`user:password`", "The same in the plan; better use the file."),
    _row("schema.registry.bearer.auth.token.file", _FILE, "A file with a token, likewise."),
    _row("schema.registry.bearer.auth.token", "a token", "The same in the plan; better use the file."),
    _row("schema.registry.ssl.ca.location", _FILE, "The CA certificates to trust, as PEM.", "the system's"),
    _row("schema.registry.ssl.certificate.location", _FILE, "The client's certificate, as PEM."),
    _row("schema.registry.ssl.key.location", _FILE, "The client's key, as PEM.", "in the certificate's file"),
)  # fmt: skip
READ_ROWS: Final = _COMMON
WRITE_ROWS: Final = (
    *_COMMON,
    _row("valueSchemaId", "a number", "Sink: the id of a registered schema to write with."),
    _row("keySchemaId", "a number", "Sink: the same for keys."),
)
