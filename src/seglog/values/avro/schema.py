"""Avro schemas as objects (Avro 1.12 specification, "Schema Declaration" and "Names").

Schemas that registries have kept for years are not all valid: defaults have the wrong type, and names have hyphens.
Avro for Java reads values of such schemas (``setValidateDefaults(false)``, ``NameValidator.NO_VALIDATION``), and so
does seglog. A wrong default is an error only if it is needed. A strict parser, as for a new schema, refuses both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from seglog.values.schemas import SchemaError

PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_INTEGERS: Final = {"int": range(-(2**31), 2**31), "long": range(-(2**63), 2**63)}
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
_COMMENT: Final = re.compile(r'("(?:[^"\\]|\\.)*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
"""A string, which is kept, or a comment."""
NO_DEFAULT: Final = object()
"""Stands for a field without a default, which differs from the default null."""


@dataclass(frozen=True, slots=True)
class Logical:
    """A logical type. ``precision`` and ``scale`` are those of a decimal."""

    name: str
    precision: int = 0
    scale: int = 0


@dataclass(slots=True, eq=False)
class Primitive:
    kind: str
    logical: Logical | None = None


@dataclass(slots=True, eq=False)
class Fixed:
    name: str
    size: int
    aliases: tuple[str, ...] = ()
    logical: Logical | None = None
    kind: str = "fixed"


@dataclass(slots=True, eq=False)
class Enum:
    name: str
    symbols: tuple[str, ...]
    default: str | None = None
    aliases: tuple[str, ...] = ()
    kind: str = "enum"


@dataclass(slots=True, eq=False)
class Array:
    items: Schema
    kind: str = "array"


@dataclass(slots=True, eq=False)
class Map:
    values: Schema
    kind: str = "map"


@dataclass(slots=True, eq=False)
class Union:
    branches: tuple[Schema, ...]
    kind: str = "union"


@dataclass(slots=True, eq=False)
class Field:
    """``default`` is JSON, or `NO_DEFAULT`."""

    name: str
    schema: Schema
    default: Any = NO_DEFAULT
    aliases: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class Record:
    """A recursive type contains itself: ``fields`` is filled after the record's name is known."""

    name: str
    aliases: tuple[str, ...] = ()
    fields: list[Field] = field(default_factory=list)
    kind: str = "record"


Schema = Primitive | Fixed | Enum | Array | Map | Union | Record
Named = Record | Enum | Fixed


def simple_name(name: str) -> str:
    """A name without its namespace.

    >>> simple_name("org.example.Flight")
    'Flight'
    """
    return name.rpartition(".")[2]


def describe(schema: Schema) -> str:
    """A schema in an error."""
    if isinstance(schema, Union):
        return f"[{', '.join(map(describe, schema.branches))}]"
    if isinstance(schema, Record | Enum | Fixed):
        return f"{schema.kind} {schema.name}"
    return schema.kind


def parse_schema(text: str, references: Sequence[str] = (), *, strict: bool = False) -> Schema:
    """Parse a schema; ``references`` are the texts of schemas whose names it uses, each after those that it needs.

    ``strict`` also checks names and defaults. Raises `SchemaError`, which names the type.

    >>> parse_schema('{"type": "record", "name": "a.Flight", "fields": [{"name": "n", "type": "int"}]}').fields[0].name
    'n'
    """
    names: dict[str, Named] = {}
    for reference in references:
        _Parser(names, strict=False).parse(load_schema(reference), "")
    return _Parser(names, strict=strict).parse(load_schema(text), "")


def load_schema(text: str) -> Any:
    """A schema's JSON, in which Avro for Java allows comments. `SchemaError` if it is not JSON."""
    try:
        found = json.loads(text)
        return "null" if found is None else found
    except (ValueError, RecursionError) as error:
        if _NAME.fullmatch(text.strip()):  # registries also return a primitive without its quotes
            return text.strip()
        plain = _COMMENT.sub(lambda found: found[1] or " ", text)
        if plain != text:
            return load_schema(plain)
        raise SchemaError(f"the Avro schema is not JSON: {error}") from error


class _Parser:
    """``names`` has every named type by its full name."""

    def __init__(self, names: dict[str, Named], *, strict: bool) -> None:
        self._names = names
        self._strict = strict

    def parse(self, node: Any, namespace: str) -> Schema:
        try:
            return self._any(node, namespace)
        except RecursionError:
            raise SchemaError("the Avro schema is nested too deeply") from None

    def _any(self, node: Any, namespace: str) -> Schema:
        if isinstance(node, str):
            return self._by_name(node, namespace)
        if isinstance(node, list):
            return self._union(node, namespace)
        if not isinstance(node, dict) or "type" not in node:
            raise SchemaError(f"{json.dumps(node)[:80]} is not an Avro schema: it has no type")
        kind = node["type"]
        if not isinstance(kind, str):
            return self._any(kind, namespace)
        if kind in ("record", "error"):
            return self._record(node, namespace)
        if kind == "enum":
            return self._enum(node, namespace)
        if kind == "fixed":
            return self._fixed(node, namespace)
        if kind == "array":
            return Array(self._any(_need(node, "items", "array"), namespace))
        if kind == "map":
            return Map(self._any(_need(node, "values", "map"), namespace))
        if kind in PRIMITIVES:
            return Primitive(kind, _logical(node, kind))
        return self._by_name(kind, namespace)

    def _by_name(self, name: str, namespace: str) -> Schema:
        if name in PRIMITIVES:
            return Primitive(name)
        for full in [name] if "." in name else [f"{namespace}.{name}" if namespace else name, name]:
            if full in self._names:
                return self._names[full]
        raise SchemaError(f"the Avro type {name!r} is not defined before it is used")

    def _union(self, branches: list[Any], namespace: str) -> Schema:
        parsed = tuple(self._any(branch, namespace) for branch in branches)
        if not parsed:
            raise SchemaError("an Avro union has no branch")
        seen: set[str] = set()
        for branch in parsed:
            if isinstance(branch, Union):
                raise SchemaError("an Avro union has a union as a branch")
            name = branch.name if isinstance(branch, Record | Enum | Fixed) else branch.kind
            if name in seen:
                raise SchemaError(f"an Avro union has two branches of type {name}")
            seen.add(name)
        return Union(parsed)

    def _record(self, node: Mapping[str, Any], namespace: str) -> Record:
        name = self._new_name(node, namespace)
        record = Record(name, _aliases(node, name))
        self._names[name] = record
        inner = name.rpartition(".")[0]
        fields = _need(node, "fields", f"record {name}")
        if not isinstance(fields, list):
            raise SchemaError(f"the fields of record {name} are not a list")
        for one in fields:
            if not isinstance(one, dict) or not isinstance(one.get("name"), str) or "type" not in one:
                raise SchemaError(f"record {name} has a field without a name or type")
            if any(one["name"] == other.name for other in record.fields):
                raise SchemaError(f"record {name} has two fields {one['name']}")
            if self._strict and not _NAME.fullmatch(one["name"]):
                raise SchemaError(f"record {name} has a field {one['name']!r}, which is not a name")
            schema = self._any(one["type"], inner)
            default = _default_of(one.get("default", NO_DEFAULT), schema)
            made = Field(one["name"], schema, default, _texts(one.get("aliases")))
            if self._strict and default is not NO_DEFAULT and not _is_valid(schema, default):
                raise SchemaError(f"{misfit_of_default(schema, default)} (field {made.name} of record {name})")
            record.fields.append(made)
        return record

    def _enum(self, node: Mapping[str, Any], namespace: str) -> Enum:
        name = self._new_name(node, namespace)
        symbols = _need(node, "symbols", f"enum {name}")
        if not isinstance(symbols, list) or not all(isinstance(one, str) for one in symbols):
            raise SchemaError(f"the symbols of enum {name} are not names")
        if len(set(symbols)) != len(symbols):
            raise SchemaError(f"enum {name} has a symbol twice")
        default = node.get("default")
        if default is not None and default not in symbols:
            if self._strict:
                raise SchemaError(f"the default {default!r} of enum {name} is not one of its symbols")
            default = None
        made = Enum(name, tuple(symbols), default, _aliases(node, name))
        self._names[name] = made
        return made

    def _fixed(self, node: Mapping[str, Any], namespace: str) -> Fixed:
        name = self._new_name(node, namespace)
        size = _need(node, "size", f"fixed {name}")
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise SchemaError(f"the size of fixed {name} is {size!r}")
        made = Fixed(name, size, _aliases(node, name), _logical(node, "fixed", size))
        self._names[name] = made
        return made

    def _new_name(self, node: Mapping[str, Any], namespace: str) -> str:
        given = node.get("name")
        if not isinstance(given, str) or not (_NAME.fullmatch(given) if self._strict else given):
            raise SchemaError(f"{given!r} is not a name for an Avro {node['type']}")
        full = full_name(given, node.get("namespace"), namespace)
        if full in self._names and not self._is_same(self._names[full], node):
            raise SchemaError(f"the Avro type {full} is defined twice")
        return full

    @staticmethod
    def _is_same(there: Named, node: Mapping[str, Any]) -> bool:
        """Whether a second definition says the same. Avro for Java also compares only enums and fixed types."""
        if isinstance(there, Enum):
            return node["type"] == "enum" and node.get("symbols") == list(there.symbols)
        return isinstance(there, Fixed) and node["type"] == "fixed" and node.get("size") == there.size


def full_name(given: str, own: object, namespace: str) -> str:
    """The full name of a type in ``namespace``; ``own`` is its attribute ``namespace``.

    >>> full_name("Flight", None, "org.example"), full_name("Flight", "", "org.example"), full_name("a.B", "c", "d")
    ('org.example.Flight', 'Flight', 'a.B')
    """
    if "." in given:
        return given.removeprefix(".")
    space = own if isinstance(own, str) else namespace
    return f"{space}.{given}" if space else given


def _need(node: Mapping[str, Any], key: str, what: str) -> Any:
    if key not in node:
        raise SchemaError(f"the Avro {what} has no {key}")
    return node[key]


def _aliases(node: Mapping[str, Any], name: str) -> tuple[str, ...]:
    return tuple(full_name(alias, None, name.rpartition(".")[0]) for alias in _texts(node.get("aliases")))


def _texts(found: object) -> tuple[str, ...]:
    return tuple(one for one in found if isinstance(one, str)) if isinstance(found, list) else ()


_LOGICAL: Final[Mapping[str, tuple[str, ...]]] = {
    "decimal": ("bytes", "fixed"),
    "uuid": ("string", "fixed"),
    "date": ("int",),
    "time-millis": ("int",),
    "time-micros": ("long",),
    "timestamp-millis": ("long",),
    "timestamp-micros": ("long",),
    "timestamp-nanos": ("long",),
    "local-timestamp-millis": ("long",),
    "local-timestamp-micros": ("long",),
    "local-timestamp-nanos": ("long",),
    "duration": ("fixed",),
    "big-decimal": ("bytes",),
}
_SIZES: Final = {"uuid": 16, "duration": 12}


def _logical(node: Mapping[str, Any], kind: str, size: int | None = None) -> Logical | None:
    """The logical type; None for one that is unknown or does not fit its type, which the specification ignores."""
    name = node.get("logicalType")
    if not isinstance(name, str) or kind not in _LOGICAL.get(name, ()):
        return None
    if size is not None and _SIZES.get(name, size) != size:
        return None
    if name != "decimal":
        return Logical(name)
    precision, scale = node.get("precision"), node.get("scale", 0)
    if not isinstance(precision, int) or not isinstance(scale, int) or not 0 <= scale <= precision or precision < 1:
        return None
    if size is not None and 10**precision - 1 > 2 ** (8 * size - 1) - 1:
        return None
    return Logical(name, precision, scale)


_JSON_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "boolean": (bool,),
    "int": (int,),
    "long": (int,),
    "float": (int, float),
    "double": (int, float),
    "bytes": (str,),
    "string": (str,),
    "fixed": (str,),
    "enum": (str,),
    "array": (list,),
    "map": (dict,),
    "record": (dict,),
}


def _default_of(default: Any, schema: Schema) -> Any:
    """A field's default. Texts are numbers where the type is float or double, as in Avro for Java."""
    if isinstance(default, str) and schema.kind in ("float", "double"):
        try:
            return float(default)
        except ValueError:
            return default
    return default


def misfit_of_default(schema: Schema, default: Any) -> str:
    return f"the default {json.dumps(default)[:80]} is not of type {describe(schema)}"


def default_branch(schema: Schema, default: Any) -> Schema | None:
    """The schema that a default is of: ``schema``, or the first branch of a union that fits; None if none does."""
    for branch in schema.branches if isinstance(schema, Union) else (schema,):
        if branch.kind == "null":
            if default is None:
                return branch
            continue
        if isinstance(default, bool) and branch.kind != "boolean":
            continue
        if isinstance(branch, Enum) and default not in branch.symbols:
            continue
        if isinstance(default, _JSON_TYPES[branch.kind]) or _is_integral(branch, default):
            return branch
    return None


def _is_valid(schema: Schema, default: Any) -> bool:
    """Whether a default and its parts are of the type; of a union, of any branch (``Schema.isValidDefault``)."""
    if isinstance(schema, Union):
        return any(_is_valid(branch, default) for branch in schema.branches)
    if default_branch(schema, default) is None or _is_integral(schema, default):
        return False
    if schema.kind in _INTEGERS:
        return default in _INTEGERS[schema.kind]
    if isinstance(schema, Array):
        return all(_is_valid(schema.items, one) for one in default)
    if isinstance(schema, Map):
        return all(_is_valid(schema.values, one) for one in default.values())
    if isinstance(schema, Record):
        values = [(one, default.get(one.name, one.default)) for one in schema.fields]
        return all(value is not NO_DEFAULT and _is_valid(one.schema, value) for one, value in values)
    return True


def _is_integral(schema: Schema, default: Any) -> bool:
    """Whether a default is an integer that is written as ``1.0``."""
    return schema.kind in ("int", "long") and isinstance(default, float) and default.is_integer()


def named_types(schema: Schema) -> Iterator[Named]:
    """All named types in a schema, each once."""
    seen: set[int] = set()
    pending: list[Schema] = [schema]
    while pending:
        one = pending.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, Record | Enum | Fixed):
            yield one
        if isinstance(one, Record):
            pending += [each.schema for each in one.fields]
        elif isinstance(one, Array):
            pending.append(one.items)
        elif isinstance(one, Map):
            pending.append(one.values)
        elif isinstance(one, Union):
            pending += one.branches
