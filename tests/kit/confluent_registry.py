"""Confluent's own client of a schema registry (the packages of ``confluent-kafka[schemaregistry]``)."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

_api: Final[Any] = import_module("confluent_kafka.schema_registry")
RegistryClientError: Final[type[Exception]] = _api.SchemaRegistryError


def registry_client(url: str) -> Any:
    """A context manager."""
    return _api.SchemaRegistryClient({"url": url})


def schema(text: str, kind: str = "AVRO", references: list[Any] | None = None) -> Any:
    return _api.Schema(text, kind, references or [])


def reference(name: str, subject: str, version: int) -> Any:
    return _api.SchemaReference(name=name, subject=subject, version=version)


def id_bytes(kind: str, number: int, path: tuple[int, ...] | None = None) -> bytes:
    """The frame of a value."""
    made = import_module("confluent_kafka.schema_registry.serde").SchemaId(kind, number, None, path and list(path))
    framed: bytes = made.id_to_bytes()
    return framed


def guid_bytes(kind: str, guid: str) -> bytes:
    """The header of a record."""
    made = import_module("confluent_kafka.schema_registry.serde").SchemaId(kind, None, guid)
    header: bytes = made.guid_to_bytes()
    return header
