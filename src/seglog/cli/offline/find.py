"""`seglog find`: look up an offset or a timestamp in a partition, and say how it was found."""

from __future__ import annotations

import os.path
from base64 import b64encode
from datetime import UTC, datetime
from typing import Annotated, Final

import typer

from seglog.cli.output import FINE, Out, fail, format_time
from seglog.core.clock import Clock, SystemClock
from seglog.core.fs import OsFs
from seglog.core.utf8 import decode_utf8
from seglog.records.compression import Codec
from seglog.storage.formats.paths import is_partition
from seglog.storage.offline.lookup import Found, Lookup, Step, find_offset, find_timestamp

_SHOWN_CHARACTERS = 60


def find(
    partition: Annotated[str, typer.Argument(metavar="PARTITION", help="A partition's directory.")],
    offset: Annotated[int | None, typer.Option(min=0, help="Find the record at this offset.")] = None,
    timestamp: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Find the first record not earlier: ms since 1970, ISO 8601, or -1h."),
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Print each step of the look-up.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document, with the steps.")] = False,
) -> int:
    """Where a record is: segment, position, batch. Without a zone, a time is in UTC."""
    fs = OsFs()
    if (offset is None) == (timestamp is None):
        return fail("find needs either --offset or --timestamp")
    path = os.path.realpath(partition)
    if not partition or not os.path.isdir(path) or not is_partition(fs, path):
        return fail(f"{partition}: not a partition's directory")
    if offset is not None:
        lookup = find_offset(fs, path, offset)
    else:
        try:
            lookup = find_timestamp(fs, path, parse_time(str(timestamp)))
        except ValueError:
            return fail(f"--timestamp is milliseconds since 1970 or a time like 2013-01-01T05:00:00Z, not {timestamp}")
    out = Out()
    try:
        if json:
            out.json(_document(lookup))
        else:
            for number, step in enumerate(lookup.steps if explain else [], start=1):
                out.line(_step_text(number, step))
            out.line(_found_text(lookup.found) if lookup.found else "no record is that late")
    finally:
        out.flush()
    return FINE


_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


def parse_time(text: str, clock: Clock | None = None) -> int:
    """Milliseconds since 1970, from such a number or from ISO 8601; without a zone it is in UTC. ``-90s``, ``-15m``,
    ``-1h``, ``-7d`` and ``-2w`` are so long before now, by ``clock``.

    >>> parse_time("1357016400000"), parse_time("2013-01-01T05:00:00Z"), parse_time("2013-01-01")
    (1357016400000, 1357016400000, 1356998400000)
    """
    if text[:1] == "-" and text[1:-1].isdecimal() and text[-1] in _UNITS_MS:
        return (clock or SystemClock()).now_ms() - int(text[1:-1]) * _UNITS_MS[text[-1]]
    if text.lstrip("-").isdecimal():
        return int(text)
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000


def _step_text(number: int, step: Step) -> str:
    facts = "  ".join(f"{name}={'-' if value is None else value}" for name, value in step.facts.items())
    return f"{number}. {step.what}: {step.why}\n     {facts}"


def _found_text(found: Found) -> str:
    record, batch = found.record, found.batch
    codec = Codec(batch.codec).name.lower()
    lines = [
        f"offset {record.offset}  timestamp {record.timestamp} ({format_time(record.timestamp)})",
        f"  segment {os.path.basename(found.segment.log)}  position {batch.position}",
        f"  batch of {batch.size} bytes, codec {codec}, up to offset {batch.last_offset}",
        f"  key {_shown(record.key)}",
        f"  value {_shown(record.value)}",
    ]
    lines += [f"  header {name}: {_shown(value)}" for name, value in record.headers]
    return "\n".join(lines)


def _shown(data: bytes | None) -> str:
    """The start of some bytes as text on one line."""
    if data is None:
        return "null"
    text = decode_utf8(data[: 4 * _SHOWN_CHARACTERS])
    line = "".join(character if character.isprintable() else "\ufffd" for character in text[:_SHOWN_CHARACTERS])
    return line if len(text) <= _SHOWN_CHARACTERS else f"{line}... ({len(data)} bytes)"


def _document(lookup: Lookup) -> dict[str, object]:
    found = lookup.found
    document: dict[str, object] = {
        "found": found is not None,
        "steps": [{"step": step.what, "why": step.why, **step.facts} for step in lookup.steps],
    }
    if found is not None:
        record, batch = found.record, found.batch
        document |= {
            "segment": found.segment.log,
            "position": batch.position,
            "batchSize": batch.size,
            "batchLastOffset": batch.last_offset,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "key": _base64(record.key),
            "value": _base64(record.value),
            "headers": [[name, _base64(value)] for name, value in record.headers],
        }
    return document


def _base64(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode()
