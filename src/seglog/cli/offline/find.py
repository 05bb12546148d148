"""`seglog find`: look up an offset or a timestamp in a partition, step by step."""

from __future__ import annotations

import os.path
from typing import Annotated

import typer

from seglog.cli.options import JsonDocument, parse_time
from seglog.cli.output import FINE, Out, fail, format_time, json_bytes
from seglog.core.fs import OsFs
from seglog.core.utf8 import decode_utf8
from seglog.records.compression import Codec
from seglog.storage.formats.paths import is_partition
from seglog.storage.offline.lookup import Lookup, LookupStep, RecordLocation, find_offset, find_timestamp

_SHOWN_CHARACTERS = 60


def find(
    partition: Annotated[str, typer.Argument(metavar="PARTITION", help="A partition's directory.")],
    offset: Annotated[int | None, typer.Option(metavar="N", min=0, help="Find the record at this offset.")] = None,
    timestamp: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Find the first record at or after TIME: ms since 1970, ISO 8601, or -1h."),
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Print each step of the lookup.")] = False,
    json: JsonDocument = False,
) -> int:
    """Find the segment, position and batch of a record. A time without a zone is in UTC."""
    fs = OsFs()
    if (offset is None) == (timestamp is None):
        return fail("find needs either --offset or --timestamp")
    path = os.path.realpath(partition)
    if not partition or not os.path.isdir(path) or not is_partition(fs, path):
        return fail(f"{partition} is not the directory of a partition")
    if offset is not None:
        lookup = find_offset(fs, path, offset)
    else:
        try:
            lookup = find_timestamp(fs, path, parse_time(str(timestamp)))
        except ValueError:
            return fail(
                f"--timestamp must be milliseconds since 1970 or a time like 2013-01-01T05:00:00Z, not {timestamp}"
            )
    with Out() as out:
        if json:
            out.json(lookup_document(lookup))
        else:
            for number, step in enumerate(lookup.steps if explain else [], start=1):
                out.line(_step_text(number, step))
            out.line(_found_text(lookup.found) if lookup.found else "no record is at or after that time")
    return FINE


def _step_text(number: int, step: LookupStep) -> str:
    facts = "  ".join(f"{name}={'-' if value is None else value}" for name, value in step.facts.items())
    return f"{number}. {step.what}: {step.why}\n     {facts}"


def _found_text(found: RecordLocation) -> str:
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
    """The first characters of some bytes, as text on one line."""
    if data is None:
        return "null"
    text = decode_utf8(data[: 4 * _SHOWN_CHARACTERS])
    line = "".join(character if character.isprintable() else "\ufffd" for character in text[:_SHOWN_CHARACTERS])
    return line if len(text) <= _SHOWN_CHARACTERS else f"{line}... ({len(data)} bytes)"


def lookup_document(lookup: Lookup) -> dict[str, object]:
    """The steps and the record, as `seglog find --json` prints them and the console draws them."""
    found = lookup.found
    document: dict[str, object] = {
        "found": found is not None,
        "steps": [
            {"step": step.what, "why": step.why, **step.facts, **({"visits": step.visits} if step.visits else {})}
            for step in lookup.steps
        ],
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
            "key": json_bytes(record.key),
            "value": json_bytes(record.value),
            "headers": [[name, json_bytes(value)] for name, value in record.headers],
        }
    return document
