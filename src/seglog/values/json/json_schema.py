"""The part of JSON Schema that has an Arrow type.

==========================================  ================================================================
``type``                                    Arrow
==========================================  ================================================================
object with properties                      struct
object with only additionalProperties       map of strings to its type
array with one schema as items              list
string                                      string; date32 or timestamp with format date or date-time; binary
                                            with contentEncoding base64
integer                                     int64, or what Connect's ``connect.type`` int8, int16, int32 says
number                                      float64, or float32
boolean                                     bool
a list of null and one other, oneOf or      that type
anyOf of null and one other
==========================================  ================================================================

``$ref`` may lead into the schema itself or to a reference. Keywords that only restrict values are not checked.
Everything else is refused by its name, and so are types that contain themselves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from seglog.values.schemas import SchemaError

_COMBINED: Final = ("allOf", "not", "if", "patternProperties", "prefixItems", "dependentSchemas")
_INTEGERS: Final = {"int8": pa.int8(), "int16": pa.int16(), "int32": pa.int32()}
_FORMATS: Final = {"date": pa.date32(), "date-time": pa.timestamp("us", tz="UTC")}


def parse_json_schema(text: str, references: Mapping[str, str]) -> pa.DataType:
    """The type of a schema; ``references`` are the texts of others by the name of their ``$ref``.

    >>> str(parse_json_schema('{"type": "object", "properties": {"n": {"type": "integer"}}}', {}))
    'struct<n: int64>'
    """
    documents = {name: _load(one) for name, one in references.items()}
    root = _load(text)
    return _Types(documents | {"": root}).of(root, "", "")


def _load(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"the JSON Schema is not JSON: {error}") from error


class _Types:
    """``documents`` by name; the schema itself has none."""

    def __init__(self, documents: Mapping[str, Any]) -> None:
        self._documents = documents
        self._open: list[str] = []

    def of(self, node: Any, document: str, where: str) -> pa.DataType:
        place = f" (at {where})" if where else ""
        if not isinstance(node, dict):
            raise SchemaError(f"a JSON Schema without a type is not supported{place}")
        for keyword in _COMBINED:
            if keyword in node:
                raise SchemaError(f"{keyword} of a JSON Schema is not supported{place}")
        if "$ref" in node:
            return self._referred(str(node["$ref"]), document, where)
        for keyword in ("oneOf", "anyOf"):
            if keyword in node:
                return self.of(_only_one(node[keyword], {"type": "null"}, keyword, place), document, where)
        kind = node.get("type")
        if isinstance(kind, list):
            kind = _only_one(kind, "null", "type", place)
        if kind == "object":
            return self._object(node, document, where)
        if kind == "array":
            if not isinstance(node.get("items"), dict):
                raise SchemaError(f"an array without one schema for its items is not supported{place}")
            return pa.list_(pa.field("element", self.of(node["items"], document, f"{where}[]")))
        found = _plain(kind, node)
        if found is None:
            raise SchemaError(f"the type {kind} of a JSON Schema is not supported{place}")
        return found

    def _object(self, node: Mapping[str, Any], document: str, where: str) -> pa.DataType:
        properties = node.get("properties")
        if properties:
            return pa.struct(
                [
                    pa.field(name, self.of(one, document, f"{where}.{name}" if where else name))
                    for name, one in properties.items()
                ]
            )
        values = node.get("additionalProperties")
        if isinstance(values, dict) and values:
            return pa.map_(pa.string(), self.of(values, document, f"{where}{{}}"))
        place = f" (at {where})" if where else ""
        raise SchemaError(f"an object with neither properties nor typed additionalProperties is not supported{place}")

    def _referred(self, ref: str, document: str, where: str) -> pa.DataType:
        name, _, pointer = ref.partition("#")
        target = name or document
        place = f" (at {where})" if where else ""
        if target not in self._documents:
            raise SchemaError(f"$ref {ref!r} is not among the references{place}")
        whole = f"{target}#{pointer}"
        if whole in self._open:
            raise SchemaError(f"$ref {ref!r} contains itself{place}: recursive types are not supported")
        node = self._documents[target]
        for step in pointer.split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(node, dict) or step not in node:
                raise SchemaError(f"$ref {ref!r} leads nowhere{place}")
            node = node[step]
        self._open.append(whole)
        found = self.of(node, target, where)
        self._open.pop()
        return found


def _only_one(kinds: Any, null: Any, keyword: str, place: str) -> Any:
    """The one of several that is not null."""
    others = [one for one in kinds if one != null] if isinstance(kinds, list) else []
    if len(others) != 1:
        raise SchemaError(f"{keyword} of several types is not supported{place}")
    return others[0]


def _plain(kind: Any, node: Mapping[str, Any]) -> pa.DataType | None:
    """The type of a value without parts; None if it is not one."""
    hint = str(node.get("connect.type"))
    if kind == "string":
        is_binary = node.get("contentEncoding") == "base64" or hint == "bytes"
        return pa.binary() if is_binary else _FORMATS.get(str(node.get("format")), pa.string())
    if kind == "integer":
        return _INTEGERS.get(hint, pa.int64())
    if kind == "number":
        return pa.float32() if hint == "float32" else pa.float64()
    if kind == "boolean":
        return pa.bool_()
    symbols = node.get("enum")
    is_enum = kind is None and isinstance(symbols, list) and all(isinstance(one, str) for one in symbols)
    return pa.string() if is_enum else None
