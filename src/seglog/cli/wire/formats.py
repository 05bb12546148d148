"""Formats of keys, values and headers: text, hex, base64 or JSON; and kcat's format strings. Pure."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from binascii import Error as BinasciiError
from collections.abc import Callable, Sequence
from json.encoder import encode_basestring
from typing import Any, Final, NamedTuple

from seglog.cli.options import OptionError, check_choice
from seglog.cli.output import json_bytes

FORMATS: Final = ("text", "json", "hex", "base64")
_dumps: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_quoted: Final[Callable[[str], str]] = encode_basestring
"""A JSON string, as ``_dumps`` writes it."""
_ESCAPES: Final = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}

Headers = Sequence[tuple[str, bytes | None]]


class ConsumedRecord(NamedTuple):
    """``timestamp_type`` is 0 (create), 1 (append) or -1; ``leader_epoch`` is None or -1 if unknown."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    leader_epoch: int | None


class RecordFormats(NamedTuple):
    """The format of keys, values and headers, and the text for null."""

    key: str
    value: str
    header: str
    null: bytes


def check_format(name: str, option: str) -> str:
    return check_choice(option, name, FORMATS)


def parse(data: bytes, form: str) -> bytes:
    """The bytes that a text in a format stands for. Raises ValueError.

    >>> parse(b"6869", "hex"), parse(b"aGk=", "base64"), parse(b'{"a": 1}', "json")
    (b'hi', b'hi', b'{"a": 1}')
    """
    if form == "text":
        return data
    try:
        if form == "hex":
            return bytes.fromhex(data.decode("ascii"))
        if form == "base64":
            return b64decode(data, validate=True)
        json.loads(data)
    except (ValueError, BinasciiError, RecursionError) as error:
        raise ValueError(f"{_short(data)} is not {form}") from error
    return data


def show(data: bytes | None, form: str, null: bytes = b"") -> bytes:
    """Bytes in a format, for a line. Raises `OptionError` if the format is json and the bytes are not.

    >>> show(b"hi", "hex"), show(b"hi", "base64"), show(None, "text", b"NULL")
    (b'6869', b'aGk=', b'NULL')
    """
    if data is None:
        return null
    if form == "hex":
        return data.hex().encode()
    if form == "base64":
        return b64encode(data)
    if form == "json":
        return json.dumps(_loads(data), ensure_ascii=False, separators=(",", ":")).encode(errors="backslashreplace")
    return data


def as_json(data: bytes | None, form: str) -> Any:
    """Bytes in a format, for a field of a JSON object."""
    if data is None or form == "text":
        return json_bytes(data)
    return _loads(data) if form == "json" else show(data, form).decode()


def _loads(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{_short(data)} is not json") from error


def _short(data: bytes) -> str:
    text = data[:60].decode(errors="replace")
    return repr(f"{text}…" if len(data) > 60 else text)


def json_line(formats: RecordFormats) -> Callable[[ConsumedRecord], str]:
    """The fields of `seglog dump --records --json` on a line; fields that a client does not receive are null. The line
    is put together by hand: an object that `json.dumps` encodes costs three times as much.

    >>> line = json_line(RecordFormats("text", "json", "hex", b""))
    >>> line(ConsumedRecord("t", 0, 7, 5, 0, b"\xff", b'{"a": 1}', [("h", b"hi"), ("n", None)], None))[:110]
    '{"topic":"t","partition":0,"offset":7,"timestamp":5,"timestampType":0,"key":{"base64":"/w=="},"value":{"a":1},'
    """
    key_of, value_of, header_of = _json_text(formats.key), _json_text(formats.value), _json_text(formats.header)
    names: dict[str, str] = {}

    def line(record: ConsumedRecord) -> str:
        topic, partition, offset, timestamp, timestamp_type, key, value, headers, epoch = record
        name = names.get(topic)
        if name is None:
            name = names[topic] = _quoted(topic)
        shown = ",".join([f"[{_quoted(title)},{header_of(content)}]" for title, content in headers]) if headers else ""
        return (
            f'{{"topic":{name},"partition":{partition},"offset":{offset},"timestamp":{timestamp},'
            f'"timestampType":{timestamp_type},"key":{key_of(key)},"value":{value_of(value)},"headers":[{shown}],'
            '"isControl":false,"isTransactional":null,"producerId":null,"producerEpoch":null,"sequence":null,'
            f'"leaderEpoch":{"null" if epoch is None else epoch}}}\n'
        )

    return line


def _json_text(form: str) -> Callable[[bytes | None], str]:
    """Bytes in a format as a field of a line. The JSON of a lone surrogate is an escape: it is no UTF-8."""

    def of_text(data: bytes | None) -> str:
        try:
            return "null" if data is None else _quoted(data.decode())
        except UnicodeDecodeError:
            return _dumps(json_bytes(data))

    def of_other(data: bytes | None) -> str:
        text = _dumps(as_json(data, form))
        return text if text.isascii() else text.encode(errors="backslashreplace").decode()

    return of_text if form == "text" else of_other


def compile_format(text: str, formats: RecordFormats) -> Callable[[ConsumedRecord], bytes]:
    r"""A format string of kcat's: %s value, %k key, %S and %K their sizes (-1 of null), %R the value's size as four
    bytes, %t topic, %p partition, %o offset, %T timestamp, %h headers, %%; and the escapes \n \r \t \0 \\ \xNN.
    """
    parts: list[bytes | Callable[[ConsumedRecord], bytes]] = []
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character == "%":
            name = text[position : position + 1]
            position += 1
            parts.append(b"%" if name == "%" else _field(name, formats))
        elif character == "\\":
            escape, position = _escape(text, position)
            parts.append(escape)
        else:
            parts.append(character.encode())
    return lambda record: b"".join(part if isinstance(part, bytes) else part(record) for part in parts)


def unescape(text: str) -> bytes:
    r"""
    >>> unescape(r"a\tb\x00")
    b'a\tb\x00'
    """
    found, position = b"", 0
    while position < len(text):
        if text[position] == "\\":
            piece, position = _escape(text, position + 1)
        else:
            piece, position = text[position].encode(), position + 1
        found += piece
    return found


def _escape(text: str, position: int) -> tuple[bytes, int]:
    """The byte for the escape at ``position``, and the position after it."""
    name = text[position : position + 1]
    if name == "x":
        digits = text[position + 1 : position + 3]
        try:
            return bytes([int(digits, 16)]), position + 3
        except ValueError:
            raise OptionError(f"\\x{digits} is not a byte") from None
    if name not in _ESCAPES:
        raise OptionError(f"\\{name} is not an escape: use \\n \\r \\t \\0 \\\\ \\xNN")
    return _ESCAPES[name], position + 1


def _field(name: str, formats: RecordFormats) -> Callable[[ConsumedRecord], bytes]:
    key, value, header, null = formats
    fields: dict[str, Callable[[ConsumedRecord], bytes]] = {
        "s": lambda record: show(record.value, value, null),
        "k": lambda record: show(record.key, key, null),
        "S": lambda record: b"%d" % _size(record.value),
        "K": lambda record: b"%d" % _size(record.key),
        "R": lambda record: _size(record.value).to_bytes(4, "big", signed=True),
        "t": lambda record: record.topic.encode(),
        "p": lambda record: b"%d" % record.partition,
        "o": lambda record: b"%d" % record.offset,
        "T": lambda record: b"%d" % record.timestamp,
        "h": lambda record: b",".join(
            name.encode(errors="replace") + b"=" + show(content, header, null) for name, content in record.headers
        ),
    }
    if name not in fields:
        raise OptionError(f"%{name} is not a field: use {' '.join(f'%{known}' for known in fields)} %%")
    return fields[name]


def _size(data: bytes | None) -> int:
    return -1 if data is None else len(data)
