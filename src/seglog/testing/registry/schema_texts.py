"""One text for each schema, however it was written: two schemas with the same text have one id.

The texts of Avro schemas are those of Avro 1.12 for Java (``Schema.toString``), which Confluent's registry stores. For
JSON Schema white space counts for nothing, for Protobuf also the separators between tokens. A registry that is asked to
normalize (``normalize=true``) also ignores the order of properties, empty documentation, and comments in Protobuf
(``AvroSchemaUtils.toNormalizedString``, ``JsonSchema.normalize``).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from seglog.values.avro.schema import PRIMITIVES, full_name, load_schema, named_types, parse_schema
from seglog.values.schemas import AVRO, JSON, SchemaError


def canonical_text(kind: str, text: str, references: Sequence[str] = (), *, normalize: bool = False) -> str:
    """The text that a registry stores; ``references`` has the texts that an Avro schema refers to.

    Raises `SchemaError` if the schema is not valid. A Protobuf schema is not compiled.

    >>> canonical_text("AVRO", '{"type": "string"}')
    '"string"'
    """
    if kind == AVRO:
        parse_schema(text, references, strict=True)
        referred = [parse_schema(one, references[:number]) for number, one in enumerate(references)]
        known = {one.name for schema in referred for one in named_types(schema)}
        return _java_json(_AvroText(known, normalize=normalize).of(load_schema(text), "", ""))
    if kind == JSON:
        return _java_json(_sorted(_load(text)) if normalize else _load(text))
    return _proto_text(text, comments=not normalize)


def _load(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"the JSON Schema is not JSON: {error}") from error


# Avro


_RESERVED: Final = frozenset(
    {"doc", "fields", "items", "name", "namespace", "size", "symbols", "values", "type", "aliases"}
)
_FIELD_RESERVED: Final = frozenset({"default", "doc", "name", "order", "type", "aliases"})
_LOGICAL: Final = ("logicalType", "precision", "scale")


class _AvroText:
    """Writes parsed JSON again with the attributes in Avro's order. ``known`` are the full names defined so far."""

    def __init__(self, known: set[str], *, normalize: bool) -> None:
        self._known = known
        self._normalize = normalize

    def of(self, node: Any, space: str, outer: str) -> Any:
        """A schema in the namespace ``space``; ``outer`` is the namespace of the text around it."""
        if isinstance(node, list):
            return [self.of(branch, space, outer) for branch in node]
        if isinstance(node, str):
            return node if node in PRIMITIVES else self._reference(node, space, outer)
        kind = node["type"]
        if not isinstance(kind, str):
            return self.of(kind, space, outer)
        if kind in ("record", "error", "enum", "fixed"):
            return self._named(kind, node, space, outer)
        if kind in ("array", "map"):
            inner = "items" if kind == "array" else "values"
            return {"type": kind, inner: self.of(node[inner], space, outer), **self._properties(node, _RESERVED)}
        if kind in PRIMITIVES:
            properties = self._properties(node, _RESERVED, logical_first=True)
            return {"type": kind, **properties} if properties else kind
        return self._reference(kind, space, outer)

    def _reference(self, name: str, space: str, outer: str) -> str:
        full = full_name(name, None, space)
        return _qualified(full if full in self._known else name, outer)

    def _named(self, kind: str, node: Mapping[str, Any], space: str, outer: str) -> Any:
        full = full_name(node["name"], node.get("namespace"), space)
        if full in self._known:
            return _qualified(full, outer)
        self._known.add(full)
        own, _, simple = full.rpartition(".")
        found: dict[str, Any] = {"type": kind, "name": simple}
        if own != outer:
            found["namespace"] = own
        if isinstance(node.get("doc"), str) and (node["doc"] or not self._normalize):
            found["doc"] = node["doc"]
        reserved = _RESERVED
        if kind == "enum":
            found["symbols"] = node["symbols"]
            reserved = reserved | {"default"}
            if isinstance(node.get("default"), str):
                found["default"] = node["default"]
        elif kind == "fixed":
            found["size"] = node["size"]
        else:
            found["fields"] = [self._field(one, own) for one in node["fields"]]
        found |= self._properties(node, reserved, logical_first=kind == "fixed")
        aliases = self._aliases(_qualified(full_name(one, None, own), own) for one in _aliases(node))
        return found | ({"aliases": aliases} if aliases else {})

    def _field(self, node: Mapping[str, Any], space: str) -> dict[str, Any]:
        type_ = self.of(node["type"], space, space)
        found: dict[str, Any] = {"name": node["name"], "type": type_}
        if isinstance(node.get("doc"), str):
            found["doc"] = node["doc"]
        if "default" in node:
            default = node["default"]
            is_float = (type_["type"] if isinstance(type_, dict) else type_) in ("float", "double")
            default = float(default) if is_float and isinstance(default, str) else default
            found["default"] = _sorted(default) if self._normalize else default
        order = str(node.get("order", "ascending")).lower()
        if order not in ("ascending", "descending", "ignore"):
            raise SchemaError(f"field {node['name']} has the order {order!r}")
        if order != "ascending":
            found["order"] = order
        aliases = self._aliases(_aliases(node))
        return found | ({"aliases": aliases} if aliases else {}) | self._properties(node, _FIELD_RESERVED)

    def _aliases(self, names: Iterable[str]) -> list[str]:
        found = list(dict.fromkeys(names))
        return sorted(found) if self._normalize else found

    def _properties(
        self, node: Mapping[str, Any], reserved: frozenset[str], *, logical_first: bool = False
    ) -> dict[str, Any]:
        names = [name for name in node if name not in reserved]
        if self._normalize:
            first = _LOGICAL if logical_first else ()
            names.sort(key=lambda name: (first.index(name) if name in first else len(first), name))
        return {name: _sorted(node[name]) if self._normalize else node[name] for name in names}


def _aliases(node: Mapping[str, Any]) -> list[str]:
    found = node.get("aliases", [])
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise SchemaError(f"the aliases of {node['name']} are not a list of names")
    return found


def _qualified(full: str, space: str) -> str:
    """A name as it is written in a namespace. One that looks like a primitive type keeps its own."""
    own, _, simple = full.rpartition(".")
    return simple if own == space and simple not in PRIMITIVES else full


# JSON as Jackson writes it


_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_TO_ESCAPE: Final = re.compile(r'["\\\x00-\x1f]')


def _sorted(value: Any) -> Any:
    """The same JSON with the keys of objects in order."""
    if isinstance(value, dict):
        return {name: _sorted(value[name]) for name in sorted(value)}
    return [_sorted(one) for one in value] if isinstance(value, list) else value


def _java_json(value: Any) -> str:
    """Compact JSON, without escapes beyond ASCII."""
    if isinstance(value, dict):
        return f"{{{','.join(f'{_java_string(name)}:{_java_json(one)}' for name, one in value.items())}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_java_json, value))}]"
    if isinstance(value, str):
        return _java_string(value)
    if isinstance(value, float):
        return java_double(value) if math.isfinite(value) else f'"{java_double(value)}"'
    return json.dumps(value)


def _java_string(text: str) -> str:
    return f'"{_TO_ESCAPE.sub(lambda found: _ESCAPES.get(found[0]) or f"{chr(92)}u{ord(found[0]):04X}", text)}"'


def java_double(value: float) -> str:
    """``Double.toString``.

    >>> [java_double(one) for one in (0.1, 1e-7, 1e7, 123456789.0, float("inf"))]
    ['0.1', '1.0E-7', '1.0E7', '1.23456789E8', 'Infinity']
    """
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return str(value)
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).rstrip("0")
    power = len(digits) + exponent - 1  # of the first digit
    scientific = ""
    if not -3 <= power < 7:
        power, scientific = 0, f"E{power}"
    whole = text[: power + 1].ljust(power + 1, "0") if power >= 0 else "0"
    fraction = text[power + 1 :] if power >= 0 else "0" * (-power - 1) + text
    return f"{'-' * sign}{whole}.{fraction or '0'}{scientific}"


# Protobuf


_PROTO_TOKEN: Final = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')|(?P<word>[\w.+-]+)|\S""",
    re.DOTALL,
)
_TIGHT_BEFORE: Final = frozenset(";,]>)")
_TIGHT_AFTER: Final = frozenset("[<(")


def _proto_text(text: str, *, comments: bool) -> str:
    """The tokens of a schema, one declaration a line."""
    lines: list[str] = []
    line, depth = "", 0
    for found in _PROTO_TOKEN.finditer(text):
        token = found[0]
        if found["comment"]:
            if comments:
                lines += [f"{'  ' * depth}{line}"] if line else []
                lines += [f"{'  ' * depth}{one.strip()}" for one in token.splitlines()]
                line = ""
            continue
        if found["string"]:
            token = f'"{token[1:-1]}"' if '"' not in token[1:-1] else token
        if token == "}":
            depth = max(depth - 1, 0)
        line += token if _is_tight(line, token) else f" {token}"
        if token in (";", "{", "}"):
            lines.append(f"{'  ' * depth}{line}")
            line = ""
        if token == "{":
            depth += 1
    if line:
        lines.append(line)
    return "".join(f"{one}\n" for one in lines)


def _is_tight(line: str, token: str) -> bool:
    """Whether no space stands before a token."""
    if not line or token in _TIGHT_BEFORE or line[-1] in _TIGHT_AFTER:
        return True
    return (token == "<" and line.endswith("map")) or (token[0] == "." and line[-1] == ")")
