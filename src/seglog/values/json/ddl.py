"""Columns as Spark writes them, ``a int, b struct<c: array<string>>``, as Arrow types."""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa

from seglog.core.suggestions import did_you_mean
from seglog.values.schemas import SchemaError

_TOKEN: Final = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|([^\W\d]\w*|\d+)|(.))", re.DOTALL)
_TYPES: Final = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(), "byte": pa.int8(), "smallint": pa.int16(), "short": pa.int16(),
    "int": pa.int32(), "integer": pa.int32(), "bigint": pa.int64(), "long": pa.int64(),
    "float": pa.float32(), "real": pa.float32(), "double": pa.float64(),
    "string": pa.string(), "binary": pa.binary(), "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"), "timestamp_ltz": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}  # fmt: skip
_DECIMALS: Final = ("decimal", "dec", "numeric")
_MAX_PRECISION: Final = 38
_MAX_DEPTH: Final = 100


def parse_ddl(text: str) -> pa.DataType:
    """A list of columns as a struct, or one type alone. `SchemaError` says where the text is wrong.

    >>> str(parse_ddl("a int, b struct<c: string>"))
    'struct<a: int32, b: struct<c: string>>'
    >>> str(parse_ddl("array<int>"))
    'list<element: int32>'
    """
    parser = _Parser(text)
    found = parser.type() if parser.is_type() else parser.fields("")
    parser.end()
    return found


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text.strip()
        self._tokens = [match[1] or match[2] or match[3] for match in _TOKEN.finditer(self._text)]
        self._at = 0
        self._depth = 0

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        self._at += 1
        return token

    def _fail(self, wanted: str) -> SchemaError:
        here = " ".join(self._tokens[max(self._at - 1, 0) : self._at + 2]) or "the end"
        return SchemaError(f"the schema {self._text[:80]!r} needs {wanted} near {here!r}")

    def _expect(self, token: str) -> None:
        if self._next() != token:
            self._at -= 1
            raise self._fail(repr(token))

    def end(self) -> None:
        if self._at < len(self._tokens):
            raise self._fail("a comma or its end")

    def is_type(self) -> bool:
        """Whether the text is one type, not a list of columns."""
        word = self._peek().lower()
        following = self._tokens[1] if len(self._tokens) > 1 else ""
        return (word in _TYPES and not following) or following in ("<", "(")

    def fields(self, closing: str) -> pa.DataType:
        """Columns up to a token."""
        found: list[pa.Field] = []
        while True:
            name = self._next()
            if not re.fullmatch(r"`.+`|\w+", name, re.DOTALL):
                self._at -= 1
                raise self._fail("the name of a column")
            name = name[1:-1].replace("``", "`") if name.startswith("`") else name
            if any(one.name.lower() == name.lower() for one in found):
                raise SchemaError(f"the schema {self._text[:80]!r} has two columns {name}")
            if self._peek() == ":":
                self._at += 1
            found.append(pa.field(name, self.type()))
            if self._peek().lower() == "not":
                raise SchemaError(f"column {name}: NOT NULL is not supported, because any JSON may lack it")
            if self._peek() != ",":
                break
            self._at += 1
        if closing:
            self._expect(closing)
        return pa.struct(found)

    def type(self) -> pa.DataType:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise SchemaError("the schema is nested too deeply")
        found = self._type()
        self._depth -= 1
        return found

    def _type(self) -> pa.DataType:
        word = self._next().lower()
        if word in _TYPES:
            return _TYPES[word]
        if word in _DECIMALS:
            return self._decimal()
        if word == "array":
            self._expect("<")
            element = self.type()
            self._expect(">")
            return pa.list_(pa.field("element", element))
        if word == "map":
            self._expect("<")
            if self.type() != pa.string():
                raise SchemaError("the keys of a map are strings in JSON: map<string, …>")
            self._expect(",")
            value = self.type()
            self._expect(">")
            return pa.map_(pa.string(), value)
        if word == "struct":
            self._expect("<")
            return self.fields(">")
        self._at -= 1
        if word and re.fullmatch(r"\w+", word):
            near = did_you_mean(word, [*_TYPES, *_DECIMALS, "array", "map", "struct"])
            raise SchemaError(f"the type {word} is not supported in a schema for JSON{near}")
        raise self._fail("a type")

    def _decimal(self) -> pa.DataType:
        if self._peek() != "(":
            return pa.decimal128(10, 0)
        self._at += 1
        numbers = [self._next()]
        if self._peek() == ",":
            self._at += 1
            numbers.append(self._next())
        self._expect(")")
        if not all(number.isdecimal() for number in numbers):
            raise self._fail("numbers for a decimal")
        precision, scale = int(numbers[0]), int(numbers[1]) if len(numbers) > 1 else 0
        if not 1 <= precision <= _MAX_PRECISION or scale > precision:
            raise SchemaError(f"decimal({precision},{scale}) is not supported: at most {_MAX_PRECISION} digits")
        return pa.decimal128(precision, scale)
