"""Schemas as texts, with the texts that they refer to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from seglog.core.errors import SeglogError

if TYPE_CHECKING:
    import pyarrow as pa

    from seglog.records.column_encoding import ByteColumn

AVRO: Final = "AVRO"
JSON: Final = "JSON"
PROTOBUF: Final = "PROTOBUF"
"""Types of schemas, as the registry's API spells them. AVRO is the default there."""


class SchemaError(SeglogError, ValueError):
    """A schema that cannot be parsed, that has a type which is not supported, or that does not fit another one."""


@dataclass(frozen=True, slots=True)
class SchemaText:
    """A schema and what it refers to. ``references`` has the name and the text of each schema that is referred to,
    after those that it needs itself."""

    kind: str
    text: str
    references: tuple[tuple[str, str], ...] = ()


class DecodedColumn(NamedTuple):
    """A typed column. Values that could not be decoded are null; ``reasons`` says why, by row."""

    array: pa.Array
    reasons: dict[int, str]


Decode = Callable[["ByteColumn"], DecodedColumn]


class ValueFormat(Protocol):
    """One of Avro, JSON and Protobuf, with the reader's schema."""

    @property
    def type(self) -> pa.DataType:
        """The Arrow type of the column."""

    @property
    def message(self) -> tuple[int, ...] | None:
        """The path to the message in a schema of Protobuf, which follows the id; None for other formats."""

    def decoder(self, writer: SchemaText | None, message: tuple[int, ...]) -> Decode:
        """Decodes values of a writer's schema; None if the values do not say which. `SchemaError` if it cannot be read
        as the reader's."""

    def encode(self, column: pa.Array) -> pa.Array:
        """The values as bytes, without frames. `InvalidRecordError` names the row that does not fit the schema."""
