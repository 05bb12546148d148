"""Records of Kafka's coordinators: a key begins with its type, a value with its version (both int16).

`GROUPS`, `TRANSACTIONS` and `SHARES` are the tables of ``__consumer_offsets``, ``__transaction_state`` and
``__share_group_state``; coordinators, `seglog dump` and the views read and write records by them. The texts of errors
are those of Kafka 4.4 (``CoordinatorRecordSerde.java``).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from seglog.core.errors import CorruptRecordError, UnsupportedFormatError
from seglog.core.types import Buffer
from seglog.records import kafka_schemas as schemas
from seglog.records.kafka_messages import Message, MessageError, message_reader, parse_schemas, record_writer

_INT16: Final = struct.Struct(">h")
_KEY_VERSION: Final = 0
"""Keys have no version of their own: another layout is another type."""


class UnknownTypeError(MessageError):
    """Kafka 4.4 has no records of this type: a newer release wrote it. Coordinators pass over such a record."""

    def __init__(self, type_: int) -> None:
        super().__init__(f"unknown type {type_}")
        self.type = type_


class UnknownVersionError(MessageError):
    """Kafka 4.4 cannot read this version of a value."""

    def __init__(self, message: Message, version: int) -> None:
        super().__init__(f"Found an unknown record version {version} for {message.id} type")
        self.message = message
        self.version = version


def as_seglog_error(error: MessageError, record: str) -> CorruptRecordError | UnsupportedFormatError:
    """The error of a coordinator, which cannot load without the record; ``record`` says of what it is."""
    if isinstance(error, UnknownVersionError):
        name, highest = error.message.name, error.message.highest
        return UnsupportedFormatError(
            f"version {error.version} of {record}'s record ({name}) is not supported: the latest is {highest}"
        )
    return CorruptRecordError(f"{record}'s record cannot be read: {error}")


class RecordKey(NamedTuple):
    """``message`` is the schema of the key's type; the fields are in its order."""

    message: Message
    fields: dict[str, Any]


class RecordValue(NamedTuple):
    message: Message
    version: int
    fields: dict[str, Any]


_Reader = tuple[Message, Callable[[bytes, int], tuple[dict[str, Any], int]]]
_Writer = Callable[[Any], bytes]


class RecordTable:
    """The types of one topic's records. Schemas are parsed when they are first used."""

    def __init__(self, keys: str, values: str) -> None:
        self._keys = keys
        self._values = values
        self._key_readers: dict[int, _Reader] = {}
        self._value_readers: dict[tuple[int, int], _Reader] = {}
        self._key_writers: dict[int, _Writer] = {}
        self._value_writers: dict[tuple[int, int], _Writer] = {}

    def read_key(self, data: Buffer) -> RecordKey:
        """Raises `UnknownTypeError` and `MessageError`."""
        raw = bytes(data)
        type_ = _read_version(raw, "key")
        found = self._key_readers.get(type_)
        if found is None:
            found = self._key_reader(type_)
        message, read = found
        try:
            return RecordKey(message, read(raw, _INT16.size)[0])
        except MessageError as error:
            raise _unreadable(error, type_, "key") from error

    def read_value(self, type_: int, data: Buffer) -> RecordValue:
        """The value of a key of this type. Raises `UnknownVersionError` and `MessageError`."""
        raw = bytes(data)
        version = _read_version(raw, "value")
        found = self._value_readers.get((type_, version))
        if found is None:
            found = self._value_reader(type_, version)
        message, read = found
        try:
            return RecordValue(message, version, read(raw, _INT16.size)[0])
        except MessageError as error:
            raise _unreadable(error, version, "value") from error

    def _key_reader(self, type_: int) -> _Reader:
        message = parse_schemas(self._keys).get(type_)
        if message is None:
            raise UnknownTypeError(type_)
        return self._key_readers.setdefault(type_, (message, message_reader(message, _KEY_VERSION)))

    def _value_reader(self, type_: int, version: int) -> _Reader:
        message = parse_schemas(self._values)[type_]
        if not 0 <= version <= message.highest:
            raise UnknownVersionError(message, version)
        return self._value_readers.setdefault((type_, version), (message, message_reader(message, version)))

    def write_key(self, type_: int, fields: Sequence[Any]) -> bytes:
        """A key with these fields, in the schema's order. `InvalidRequestError` for a text that is too long."""
        found = self._key_writers.get(type_)
        if found is None:
            message = parse_schemas(self._keys)[type_]
            found = self._key_writers[type_] = record_writer(message, _KEY_VERSION, _INT16.pack(type_), by_name=False)
        return found(fields)

    def write_value(self, type_: int, fields: Mapping[str, Any], version: int) -> bytes:
        """A value with these fields. `InvalidRequestError` for a text that is too long."""
        found = self._value_writers.get((type_, version))
        if found is None:
            message = parse_schemas(self._values)[type_]
            found = record_writer(message, version, _INT16.pack(version), by_name=True)
            self._value_writers[type_, version] = found
        return found(fields)


GROUPS: Final = RecordTable(schemas.GROUP_KEYS, schemas.GROUP_VALUES)
TRANSACTIONS: Final = RecordTable(schemas.TRANSACTION_KEYS, schemas.TRANSACTION_VALUES)
SHARES: Final = RecordTable(schemas.SHARE_KEYS, schemas.SHARE_VALUES)


def _read_version(data: bytes, name: str) -> int:
    try:
        (version,) = _INT16.unpack_from(data)
    except struct.error:
        raise MessageError(f"Could not read version from {name}'s buffer.") from None
    number: int = version
    return number


def _unreadable(error: MessageError, version: int, name: str) -> MessageError:
    return MessageError(f"Could not read record with version {version} from {name}'s buffer due to: {error}.")
