"""Lines of input as records: key, value and headers, or an object of `seglog consume --json`. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from seglog.cli.wire.formats import parse


class OutgoingRecord(NamedTuple):
    """A record to be produced; ``partition`` and ``timestamp`` (ms) are None unless the line has them."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    partition: int | None = None
    timestamp: int | None = None


class LineReader(NamedTuple):
    """Parses lines. ``null_marker``: text that stands for null."""

    key_separator: bytes | None = None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    parse_headers: bool = False
    key_format: str = "text"
    value_format: str = "text"
    header_format: str = "text"
    empty_is_null: bool = False
    null_marker: bytes | None = None

    def read(self, line: bytes) -> OutgoingRecord:
        """Raises ValueError with the mistake in the line."""
        headers = self.headers
        if self.parse_headers:
            text, tab, line = line.partition(b"\t")
            if not tab:
                raise ValueError("the line has no tab after the headers")
            headers = [*headers, *(self._header(one) for one in text.split(b",") if one)]
        key: bytes | None = self.key
        if self.key_separator is not None:
            text, separator, rest = line.partition(self.key_separator)
            if not separator:
                raise ValueError(f"the line has no key separator {self.key_separator.decode(errors='replace')!r}")
            key, line = self._field(text, self.key_format), rest
        return OutgoingRecord(key, self._field(line, self.value_format), headers)

    def _field(self, data: bytes, form: str) -> bytes | None:
        if data == self.null_marker or (self.empty_is_null and not data):
            return None
        return parse(data, form)

    def _header(self, text: bytes) -> tuple[str, bytes | None]:
        name, colon, value = text.partition(b":")
        if not colon or not name:
            raise ValueError(f"{text.decode(errors='replace')!r} is not a header NAME:VALUE")
        return name.decode(errors="replace"), self._field(value, self.header_format)

    def read_object(self, line: bytes, *, keep_partition: bool = False) -> OutgoingRecord:
        """A record of `seglog consume --json` and `seglog dump --records --json`, whose texts are in the formats.

        Its topic and offset are ignored, and without ``keep_partition`` its partition. Raises ValueError."""
        try:
            found = json.loads(line)
        except RecursionError as error:
            raise ValueError("the JSON is nested too deeply") from error
        if not isinstance(found, dict):
            raise ValueError("the line is not a JSON object")
        partition, timestamp = found.get("partition"), found.get("timestamp")
        for name, number in (("partition", partition), ("timestamp", timestamp)):
            if number is not None and (not isinstance(number, int) or isinstance(number, bool)):
                raise ValueError(f"{name} is not an integer")
        headers = found.get("headers") or []
        if not isinstance(headers, list) or not all(
            isinstance(one, list) and len(one) == 2 and isinstance(one[0], str) for one in headers
        ):
            raise ValueError("headers is not a list of [name, value]")
        return OutgoingRecord(
            _bytes(found.get("key"), "key", self.key_format),
            _bytes(found.get("value"), "value", self.value_format),
            [(name, _bytes(value, f"header {name}", self.header_format)) for name, value in headers],
            partition if keep_partition else None,
            None if timestamp is None or timestamp < 0 else timestamp,
        )


def _bytes(value: Any, name: str, form: str) -> bytes | None:
    if value is None:
        return None
    if form == "json":
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogateescape")
    if isinstance(value, dict) and list(value) == ["base64"]:
        value, form = value["base64"], "base64"
    if not isinstance(value, str):
        raise ValueError(f'{name} is neither a text nor {{"base64": "…"}} nor null')
    try:
        return parse(value.encode(errors="surrogateescape"), form)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
