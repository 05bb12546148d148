"""Subjects, versions, compatibility levels and modes, as the records of ``_schemas`` say. No I/O.

A change is a list of records, which the topic gets first and `RegistryState.apply` then. Keys and values are JSON in
Confluent's form (``SchemaKey``, ``SchemaValue``, ``ConfigKey``, ``ModeKey``, ``DeleteSubjectKey``).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, Final
from uuid import UUID

from seglog.testing.registry.schema_texts import canonical_text
from seglog.values.avro.compatibility import incompatibilities
from seglog.values.avro.schema import parse_schema
from seglog.values.schemas import AVRO, JSON, PROTOBUF, SchemaError

LEVELS: Final = (
    "NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE",
)  # fmt: skip
MODES: Final = ("READWRITE", "READONLY")
KINDS: Final = (JSON, PROTOBUF, AVRO)
LATEST: Final = -1

Change = tuple[dict[str, Any], dict[str, Any] | None]
"""Key and value of a record."""


class RegistryError(Exception):
    """An answer that is an error: an HTTP status and Confluent's code."""

    def __init__(self, status: HTTPStatus, code: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


def not_found(code: int, message: str) -> RegistryError:
    return RegistryError(HTTPStatus.NOT_FOUND, code, message)


def invalid(code: int, message: str) -> RegistryError:
    return RegistryError(HTTPStatus.UNPROCESSABLE_ENTITY, code, message)


@dataclass(frozen=True, slots=True)
class Reference:
    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema, whatever subjects have it: two that are equal have one id."""

    kind: str
    text: str
    references: tuple[Reference, ...] = ()

    @property
    def guid(self) -> str:
        whole = json.dumps([self.kind, self.text, [[one.name, one.subject, one.version] for one in self.references]])
        return str(UUID(bytes=hashlib.md5(whole.encode(), usedforsecurity=False).digest()))


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a subject. A deleted one stays until it is deleted for good."""

    subject: str
    number: int
    schema_id: int
    schema: Schema
    is_deleted: bool = False


class RegistryState:
    """The state that the records so far describe. Only `apply` changes anything."""

    def __init__(self, first_id: int = 1) -> None:
        self._subjects: dict[str, dict[int, Version]] = {}
        self._ids: dict[int, Schema] = {}
        self._levels: dict[str | None, str] = {}
        self._modes: dict[str | None, str] = {}
        self._normalizing: dict[str | None, bool] = {}
        self._next_id = first_id

    @property
    def next_id(self) -> int:
        return self._next_id

    def apply(self, key: Mapping[str, Any], value: Mapping[str, Any] | None) -> None:
        """Take a record. Kinds that are not known, such as NOOP, change nothing."""
        kind, subject = key.get("keytype"), key.get("subject")
        if kind == "SCHEMA":
            self._apply_schema(str(subject), int(key["version"]), value)
        elif kind == "DELETE_SUBJECT" and value is not None:
            versions = self._subjects.get(str(subject), {})
            for number in [number for number in versions if number <= int(value["version"])]:
                versions[number] = replace(versions[number], is_deleted=True)
        elif kind == "CONFIG":
            _set(self._levels, subject, value, "compatibilityLevel")
            _set(self._normalizing, subject, value, "normalize")
        elif kind == "MODE":
            _set(self._modes, subject, value, "mode")

    def _apply_schema(self, subject: str, number: int, value: Mapping[str, Any] | None) -> None:
        versions = self._subjects.setdefault(subject, {})
        if value is None:
            versions.pop(number, None)
            if not versions:
                del self._subjects[subject]
            return
        references = tuple(
            Reference(one["name"], one["subject"], one["version"]) for one in value.get("references") or ()
        )
        schema = Schema(value.get("schemaType", AVRO), value["schema"], references)
        versions[number] = Version(subject, number, int(value["id"]), schema, bool(value.get("deleted")))
        self._ids[int(value["id"])] = schema
        self._next_id = max(self._next_id, int(value["id"]) + 1)

    # Questions

    def subjects(self, *, deleted: bool = False) -> list[str]:
        return sorted(
            name
            for name, versions in self._subjects.items()
            if any(deleted or not one.is_deleted for one in versions.values())
        )

    def versions(self, subject: str, *, deleted: bool = False) -> list[Version]:
        """All versions of a subject, ascending. Error 40401 if there is none."""
        found = [one for _, one in sorted(self._subjects.get(subject, {}).items()) if deleted or not one.is_deleted]
        if not found:
            raise not_found(40401, f"Subject '{subject}' not found.")
        return found

    def version(self, subject: str, text: str, *, deleted: bool = False) -> Version:
        """A version by its number, ``latest`` or -1. Errors 40401, 40402 and 42202."""
        versions = self.versions(subject, deleted=deleted)
        if text in ("latest", str(LATEST)):
            return versions[-1]
        if not text.isdecimal() or not 0 < int(text) < 2**31:
            raise invalid(42202, f"The specified version '{text}' is not a valid version id.")
        for one in versions:
            if one.number == int(text):
                return one
        raise not_found(40402, f"Version {text} not found.")

    def schema(self, schema_id: int) -> Schema:
        if schema_id not in self._ids:
            raise not_found(40403, f"Schema {schema_id} not found")
        return self._ids[schema_id]

    def by_guid(self, guid: str) -> tuple[int, Schema]:
        for schema_id, schema in self._ids.items():
            if schema.guid == guid:
                return schema_id, schema
        raise not_found(40403, f"Schema {guid} not found")

    def with_id(self, schema_id: int) -> list[Version]:
        """The versions that have the schema."""
        self.schema(schema_id)
        return [one for one in self._all() if one.schema_id == schema_id and not one.is_deleted]

    def referenced_by(self, subject: str, number: int) -> list[int]:
        """The ids of schemas that refer to a version."""
        return sorted(
            {
                one.schema_id
                for one in self._all()
                if not one.is_deleted
                and any((ref.subject, ref.version) == (subject, number) for ref in one.schema.references)
            }
        )

    def _all(self) -> Iterator[Version]:
        for _, versions in sorted(self._subjects.items()):
            yield from versions.values()

    def level(self, subject: str | None, *, default: bool = True) -> str:
        """The compatibility level of a subject, or of all (None)."""
        if subject in self._levels:
            return self._levels[subject]
        if subject is not None and not default:
            raise not_found(40408, f"Subject '{subject}' does not have subject-level compatibility configured")
        return self._levels.get(None, "BACKWARD")

    def normalizes(self, subject: str | None) -> bool:
        """Whether schemas of a subject are normalized without being asked for."""
        return self._normalizing.get(subject, self._normalizing.get(None, False))

    def mode(self, subject: str | None, *, default: bool = True) -> str:
        if subject in self._modes:
            return self._modes[subject]
        if subject is not None and not default:
            raise not_found(40409, f"Subject '{subject}' does not have subject-level mode configured")
        return self._modes.get(None, "READWRITE")

    # Schemas

    def parse(self, body: Mapping[str, Any], *, normalize: bool = False) -> Schema:
        """The schema of a request, in the form that `canonical_text` gives it. Error 42201 if it is not valid."""
        kind, text = body.get("schemaType") or AVRO, body.get("schema")
        if kind not in KINDS or not isinstance(text, str) or not text.strip():
            raise invalid(42201, f"Invalid schema of type {kind}")
        try:
            references = tuple(
                Reference(str(one["name"]), str(one["subject"]), int(one["version"]))
                for one in body.get("references") or ()
            )
        except (KeyError, TypeError, ValueError):
            raise invalid(42201, "Invalid schema: a reference needs name, subject and version") from None
        schema = Schema(kind, text, references)
        for one in references:
            try:
                self.version(one.subject, str(one.version))
            except RegistryError as error:
                raise invalid(42201, f"Invalid schema: reference {one.name}: {error}") from None
        try:
            references_of = self._reference_texts(schema) if kind == AVRO else ()
            return replace(schema, text=canonical_text(kind, text, references_of, normalize=normalize))
        except SchemaError as error:
            raise invalid(42201, f"Invalid schema: {error}") from None

    def _reference_texts(self, schema: Schema) -> list[str]:
        """The texts that a schema refers to, each after those that it needs."""
        texts: dict[str, None] = {}
        for one in schema.references:
            inner = self.version(one.subject, str(one.version), deleted=True).schema
            texts |= dict.fromkeys([*self._reference_texts(inner), inner.text])
        return list(texts)

    def lookup(self, subject: str, schema: Schema, *, deleted: bool = False) -> Version:
        """The version of a subject that has a schema. Errors 40401 and 40403."""
        for one in reversed(self.versions(subject, deleted=deleted)):
            if one.schema == schema:
                return one
        raise not_found(40403, "Schema not found")

    def misfits(self, subject: str, schema: Schema, text: str | None = None) -> list[str]:
        """Why a schema is not compatible with a version of a subject, or with those that its level names."""
        level = self.level(subject)
        if text is not None:
            others = [self.version(subject, text)]
        else:
            others = [one for one in self._subjects.get(subject, {}).values() if not one.is_deleted]
            others = others if level.endswith("_TRANSITIVE") else others[-1:]
        found = []
        for one in others if level != "NONE" else ():
            reasons = self._compare(schema, one.schema, level.removesuffix("_TRANSITIVE"))
            found += [f"{reason} (version {one.number}, level {level})" for reason in reasons]
        return found

    def _compare(self, new: Schema, old: Schema, level: str) -> list[str]:
        if new.kind != old.kind:
            return [f"a schema of type {new.kind} instead of {old.kind}"]
        if new.kind != AVRO:
            return []
        ours, theirs = (parse_schema(one.text, self._reference_texts(one)) for one in (new, old))
        found = []
        if level in ("BACKWARD", "FULL"):
            found += incompatibilities(ours, theirs)
        if level in ("FORWARD", "FULL"):
            found += incompatibilities(theirs, ours)
        return found

    # Changes

    def register(self, subject: str, schema: Schema) -> tuple[int, list[Change]]:
        """The id, and the records of a new version if the subject does not have the schema."""
        there = self._subjects.get(subject, {})
        for one in there.values():
            if one.schema == schema and not one.is_deleted:
                return one.schema_id, []
        self._check_writable(subject)
        misfits = self.misfits(subject, schema)
        if misfits:
            reason = f'Schema being registered is incompatible with an earlier schema for subject "{subject}"'
            raise RegistryError(HTTPStatus.CONFLICT, 409, f"{reason}, details: {misfits}")
        known = next((number for number, one in self._ids.items() if one == schema), self._next_id)
        made = Version(subject, max(there, default=0) + 1, known, schema)
        return known, [version_record(made)]

    def delete_subject(self, subject: str, *, permanent: bool) -> tuple[list[int], list[Change]]:
        versions = self.versions(subject, deleted=True)
        alive = [one for one in versions if not one.is_deleted]
        self._check_writable(subject)
        if permanent:
            if alive:
                raise not_found(40405, f"Subject '{subject}' was not deleted first before being permanently deleted")
            return [one.number for one in versions], [(_schema_key(one), None) for one in versions]
        if not alive:
            raise not_found(40404, f"Subject '{subject}' was soft deleted. Set permanent=true to delete permanently")
        for one in alive:
            self._check_unreferenced(one)
        key = {"keytype": "DELETE_SUBJECT", "subject": subject, "magic": 0}
        return [one.number for one in alive], [(key, {"subject": subject, "version": versions[-1].number})]

    def delete_version(self, subject: str, text: str, *, permanent: bool) -> tuple[int, list[Change]]:
        one = self.version(subject, text, deleted=True)
        self._check_writable(subject)
        if permanent:
            if not one.is_deleted:
                raise not_found(40407, f"Subject '{subject}' Version {one.number} was not deleted first")
            return one.number, [(_schema_key(one), None)]
        if one.is_deleted:
            raise not_found(40406, f"Subject '{subject}' Version {one.number} was soft deleted")
        self._check_unreferenced(one)
        return one.number, [version_record(replace(one, is_deleted=True))]

    def _check_unreferenced(self, one: Version) -> None:
        if self.referenced_by(one.subject, one.number):
            raise invalid(42206, f"One or more references exist to the schema {one.subject} version {one.number}")

    def _check_writable(self, subject: str) -> None:
        if self.mode(subject) != "READWRITE":
            raise invalid(42205, f"Subject {subject} is in read-only mode")

    def configure(self, subject: str | None, *, level: str | None, normalize: bool | None) -> list[Change]:
        """Set the level, or whether schemas are normalized, or both; None leaves one as it is."""
        if (level is None and normalize is None) or (level is not None and level not in LEVELS):
            raise invalid(42203, f"Invalid compatibility level. Valid values are {', '.join(LEVELS)}")
        value: dict[str, Any] = {}
        if (level or self._levels.get(subject)) is not None:
            value["compatibilityLevel"] = level or self._levels[subject]
        if normalize is None:
            normalize = self._normalizing.get(subject)
        if normalize is not None:
            value["normalize"] = normalize
        return [(_plain_key("CONFIG", subject), value)]

    def set_mode(self, subject: str | None, mode: str) -> list[Change]:
        if mode not in MODES:
            raise invalid(42204, f"Invalid mode. Valid values are {', '.join(MODES)}")
        return [(_plain_key("MODE", subject), {"mode": mode})]

    def unset(self, kind: str, subject: str | None) -> list[Change]:
        """Remove a level (CONFIG) or a mode (MODE)."""
        return [(_plain_key(kind, subject), None)]


def _set(table: dict[str | None, Any], subject: str | None, value: Mapping[str, Any] | None, name: str) -> None:
    if value is not None and value.get(name) is not None:
        table[subject] = value[name]
    else:
        table.pop(subject, None)


def _schema_key(one: Version) -> dict[str, Any]:
    return {"keytype": "SCHEMA", "subject": one.subject, "version": one.number, "magic": 1}


def _plain_key(kind: str, subject: str | None) -> dict[str, Any]:
    return {"keytype": kind, "subject": subject, "magic": 0}


def version_record(one: Version) -> Change:
    value: dict[str, Any] = {"subject": one.subject, "version": one.number, "id": one.schema_id}
    value |= schema_json(one.schema)
    return _schema_key(one), {**value, "deleted": one.is_deleted}


def schema_json(schema: Schema) -> dict[str, Any]:
    """The fields of a schema. AVRO is not named, as Confluent's registry does not."""
    found: dict[str, Any] = {}
    if schema.kind != AVRO:
        found["schemaType"] = schema.kind
    if schema.references:
        found["references"] = [
            {"name": one.name, "subject": one.subject, "version": one.version} for one in schema.references
        ]
    return {**found, "schema": schema.text}
