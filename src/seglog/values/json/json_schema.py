"""The columns that a JSON Schema describes, of any draft, and of OpenAPI.

==========================================  ================================================================
Schema                                      Arrow
==========================================  ================================================================
object with properties                      struct
object with additionalProperties or         map of strings to their type; to texts if they have none
patternProperties only, or with nothing
array                                       list; of the type of all its items, if they are a tuple
string                                      string; date32 or timestamp with format date or date-time; binary
                                            with contentEncoding base64 or format byte
integer                                     int64, or what Connect's ``connect.type`` int8, int16, int32 or
                                            the format int32 says
number                                      float64, or float32; a decimal if Connect's ``connect.type`` is bytes
boolean                                     bool
const, enum                                 the type of the values
null beside others                          their type
oneOf, anyOf, a list of types               one type that holds all: numbers widen, objects have the fields
                                            of all; otherwise texts
allOf, $ref beside other keywords           a type that fits all of them: an object with all their fields
anything (``{}``, ``true``, no type)        texts: a string as it is, the JSON of everything else
==========================================  ================================================================

``$ref`` may lead into the schema itself (a pointer, ``$anchor``, ``$id``) or to a reference. Keywords that only
restrict values are not checked. A type that contains itself is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from typing import Any, Final
from urllib.parse import unquote, urljoin

import pyarrow as pa

from seglog.values.json.shapes import ANY, NOTHING, Entries, Items, Object, Plain, Shape, Unscaled, both, either
from seglog.values.schemas import SchemaError

_INTEGERS: Final = {"int8": pa.int8(), "int16": pa.int16(), "int32": pa.int32()}
_FORMATS: Final = {"date": pa.date32(), "date-time": pa.timestamp("us", tz="UTC"), "byte": pa.binary()}
_KINDS: Final = (
    ("object", ("properties", "additionalProperties", "patternProperties")),
    ("array", ("items", "prefixItems")),
)
"""Schemas often leave out the type that these keywords imply."""
_MOST_DIGITS: Final = 38
_MOST_SCHEMAS: Final = 100_000
"""A few nested definitions can refer to each other so often that following them would never end."""


def parse_json_schema(text: str, references: Mapping[str, str]) -> Shape:
    """The shape of a schema's values; ``references`` are the texts of others by the name of their ``$ref``.

    >>> parse_json_schema('{"type": "object", "properties": {"n": {"type": "integer"}}}', {})
    Object(fields={'n': Plain(type=DataType(int64))})
    """
    documents = {name: _load(one) for name, one in references.items()}
    root = _load(text)
    try:
        return _Shapes(documents | {"": root}).of(root, "", "") or ANY
    except RecursionError:
        raise SchemaError("the JSON Schema is nested too deeply") from None


def _load(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"the JSON Schema is not JSON: {error}") from error


class _Shapes:
    """``documents`` by name; the schema itself has none."""

    def __init__(self, documents: Mapping[str, Any]) -> None:
        self._documents = documents
        self._identified = dict(_identified(documents))
        self._open: list[int] = []
        self._seen = 0

    def of(self, node: Any, document: str, where: str) -> Shape | None:
        """None if the schema says nothing about the type, as one that only restricts values."""
        if isinstance(node, bool):
            return ANY if node else NOTHING
        if not isinstance(node, dict):
            raise SchemaError(f"{json.dumps(node)[:60]} is not a JSON Schema{_at(where)}")
        self._seen += 1
        if self._seen > _MOST_SCHEMAS:
            raise SchemaError(f"the JSON Schema has over {_MOST_SCHEMAS:,} parts when its $ref are followed")
        found: Shape | None = None
        for one in self._conjuncts(node, document, where):
            found = one if found is None else both(found, one)
        for keyword in ("oneOf", "anyOf"):
            parts = self._parts(keyword, node, document, where)
            said = [one for one in parts if one is not None]
            if said and len(said) < len(parts):  # a value may also be of the part that says nothing
                rest = ANY if found is None else found
                found = reduce(either, (both(rest, one) for one in said), rest)
            elif said:
                one = reduce(either, said)
                found = one if found is None else both(found, one)
        return found

    def _conjuncts(self, node: Mapping[str, Any], document: str, where: str) -> Iterator[Shape]:
        """The shapes that a value must have at once, besides ``oneOf`` and ``anyOf``."""
        own = self._own(node, document, where)
        if own is not None:
            yield own
        if "$ref" in node:
            referred = self._referred(str(node["$ref"]), document, where)
            if referred is not None:
                yield referred
        for one in self._parts("allOf", node, document, where):
            if one is not None:
                yield one

    def _parts(self, keyword: str, node: Mapping[str, Any], document: str, where: str) -> list[Shape | None]:
        """The shapes of the schemas that a keyword lists; none without it."""
        if keyword not in node:
            return []
        parts = node[keyword]
        if not isinstance(parts, list) or not parts:
            raise SchemaError(f"{keyword} of a JSON Schema is not a list of schemas{_at(where)}")
        return [self.of(part, document, where) for part in parts]

    def _own(self, node: Mapping[str, Any], document: str, where: str) -> Shape | None:
        """What the keywords of the schema itself say."""
        kinds = node.get("type")
        if kinds is None:
            if "const" in node:
                return _shape_of_value(node["const"])
            if isinstance(node.get("enum"), list):
                return _either(map(_shape_of_value, node["enum"]))
            kinds = [kind for kind, keywords in _KINDS if any(one in node for one in keywords)]
        elif not isinstance(kinds, list):
            kinds = [kinds]
        shapes = [self._kind(kind, node, document, where) for kind in kinds]
        return _either(shapes) if shapes else None

    def _kind(self, kind: Any, node: Mapping[str, Any], document: str, where: str) -> Shape:
        if isinstance(kind, dict):  # draft 3
            return self.of(kind, document, where) or ANY
        if kind == "object":
            return self._object(node, document, where)
        if kind == "array":
            return Items(self._element(node, document, f"{where}[]"))
        found = _plain(kind, node)
        if found is None:
            raise SchemaError(f"JSON Schema has no type {kind}{_at(where)}")
        return found

    def _object(self, node: Mapping[str, Any], document: str, where: str) -> Shape:
        properties = node.get("properties")
        if isinstance(properties, dict) and properties:
            return Object(
                {
                    name: self.of(one, document, f"{where}.{name}" if where else name) or ANY
                    for name, one in properties.items()
                }
            )
        patterns = node.get("patternProperties")
        values = list(patterns.values()) if isinstance(patterns, dict) else []
        more = node.get("additionalProperties")
        if more is not None and more is not False:
            values.append(more)
        shapes = [self.of(one, document, f"{where}{{}}") or ANY for one in values]
        return Entries(_either(shapes) if shapes else ANY)

    def _element(self, node: Mapping[str, Any], document: str, where: str) -> Shape:
        """The shape of each item; those of a tuple share one."""
        items, first = node.get("items"), node.get("prefixItems")
        if isinstance(items, list):
            first, items = items, node.get("additionalItems", False)
        parts = list(first) if isinstance(first, list) else []
        if items is not None and items is not False:
            parts.append(items)
        shapes = [self.of(one, document, where) or ANY for one in parts]
        return _either(shapes) if shapes else ANY

    def _referred(self, ref: str, document: str, where: str) -> Shape | None:
        target, node = self._find(ref, document, where)
        if id(node) in self._open:
            raise SchemaError(f"$ref {ref!r} contains itself{_at(where)}: recursive types are not supported")
        self._open.append(id(node))
        found = self.of(node, target, where)
        self._open.pop()
        return found

    def _find(self, ref: str, document: str, where: str) -> tuple[str, Any]:
        """The document and the schema that a ``$ref`` names."""
        if ref in self._identified:
            return self._identified[ref]
        name, _, fragment = ref.partition("#")
        base = self._documents[document]
        joined = urljoin(_id_of(base), name)
        for candidate in (name, joined) if name else (document,):
            if candidate in self._documents:
                target, node = candidate, self._documents[candidate]
            elif candidate in self._identified:
                target, node = self._identified[candidate]
            else:
                continue
            if fragment and not fragment.startswith("/"):  # an $anchor
                anchored = dict(_anchors(node)).get(fragment)
                if anchored is None:
                    break
                return target, anchored
            return target, _follow(node, ref, fragment, where)
        if not name or name in self._documents:
            raise SchemaError(f"$ref {ref!r} leads nowhere{_at(where)}")
        raise SchemaError(f"$ref {ref!r} is not among the references{_at(where)}")


def _follow(node: Any, ref: str, pointer: str, where: str) -> Any:
    """The part of a document that a JSON Pointer (RFC 6901) leads to."""
    for step in pointer.split("/")[1:]:
        step = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and step in node:
            node = node[step]
        elif isinstance(node, list) and step.isdecimal() and int(step) < len(node):
            node = node[int(step)]
        else:
            raise SchemaError(f"$ref {ref!r} leads nowhere{_at(where)}")
    return node


def _identified(documents: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, Any]]]:
    """Each schema that has an ``$id`` (``id`` in draft 4 and before), by it, with its document's name."""
    for name, document in documents.items():
        for node in _nodes(document):
            if _id_of(node):
                yield _id_of(node).removesuffix("#"), (name, node)


def _anchors(document: Any) -> Iterator[tuple[str, Any]]:
    for node in _nodes(document):
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(node.get(keyword), str):
                yield node[keyword], node
        if _id_of(node).startswith("#"):
            yield _id_of(node)[1:], node


def _nodes(document: Any) -> Iterator[dict[str, Any]]:
    pending = [document]
    while pending:
        one = pending.pop()
        if isinstance(one, dict):
            yield one
            pending += one.values()
        elif isinstance(one, list):
            pending += one


def _id_of(node: Any) -> str:
    if not isinstance(node, dict):
        return ""
    found = node.get("$id", node.get("id"))
    return found if isinstance(found, str) else ""


def _either(shapes: Iterable[Shape]) -> Shape:
    found: Shape = NOTHING
    return reduce(either, shapes, found)


def _shape_of_value(value: Any) -> Shape:
    """The shape of a constant."""
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return Plain(pa.bool_())
    if isinstance(value, int | float):
        return Plain(pa.int64() if float(value).is_integer() else pa.float64())
    if isinstance(value, str):
        return Plain(pa.string())
    if isinstance(value, list):
        return Items(_either(map(_shape_of_value, value)))
    return Object({name: _shape_of_value(one) for name, one in value.items()}) if value else Entries(ANY)


def _plain(kind: Any, node: Mapping[str, Any]) -> Shape | None:
    """The shape of a type without parts; None if there is no such type."""
    hint, format_ = str(node.get("connect.type")), str(node.get("format"))
    if kind == "null":
        return NOTHING
    if kind == "any":  # drafts before 4
        return ANY
    if kind == "string":
        is_binary = node.get("contentEncoding") == "base64" or hint == "bytes"
        return Plain(pa.binary() if is_binary else _FORMATS.get(format_, pa.string()))
    if kind == "integer":
        return Plain(_INTEGERS.get(hint) or _INTEGERS.get(format_) or pa.int64())
    if kind == "number" and hint == "bytes":
        return _connect_decimal(node)
    if kind == "number":
        return Plain(pa.float32() if "float32" in (hint, format_) or format_ == "float" else pa.float64())
    return Plain(pa.bool_()) if kind == "boolean" else None


def _connect_decimal(node: Mapping[str, Any]) -> Shape:
    """Connect's Decimal, whose values are the base64 of their unscaled bytes, or numbers (``decimal.format``).

    Text, as the value has it, if the decimal does not fit into Arrow's.
    """
    parameters = node.get("connect.parameters")
    given = parameters if isinstance(parameters, dict) else {}
    try:
        scale = int(given.get("scale", 0))
        precision = int(given.get("connect.decimal.precision", 0))
    except (TypeError, ValueError) as error:
        raise SchemaError(f"{json.dumps(given)[:80]} are not parameters of a decimal: {error}") from error
    precision = max(precision if precision > 0 else _MOST_DIGITS, scale)
    return Unscaled(precision, scale) if precision <= _MOST_DIGITS and scale >= -_MOST_DIGITS else ANY


def _at(where: str) -> str:
    return f" (at {where})" if where else ""
