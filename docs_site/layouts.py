"""Drawings of byte layouts for `docs/formats.md`: offsets, sizes and types are those of the `Struct` that parses them.

A drawing stands in the page below a line ``<!-- drawn: batch -->``. To add one, add it to `DRAWINGS` and put such a
line with an empty ``text`` block below it into the page; ``python -m docs_site --write`` fills the block.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from struct import Struct, calcsize
from typing import Final, NamedTuple

from seglog.records.batch import CRC_START, HEADER
from seglog.storage.log.index import OFFSET_ENTRY, TIME_ENTRY
from seglog.storage.log.manifest import CHAINED
from seglog.storage.log.manifest import ENTRY as MANIFEST_ENTRY
from seglog.storage.log.producers import SNAPSHOT_ENTRY, SNAPSHOT_HEADER
from seglog.storage.log.transaction_index import ENTRY as TRANSACTION_ENTRY

_TYPES: Final = {"b": "int8", "h": "int16", "i": "int32", "I": "uint32", "q": "int64"}
_PLACE: Final = re.compile(r"(<!-- drawn: (\S+) -->\n\n```text\n).*?(```\n)", re.DOTALL)


class Field(NamedTuple):
    """One field of a layout; a note of several lines is continued below the first."""

    name: str
    note: str = ""


class Drawing(NamedTuple):
    """A layout and its fields in their order; ``tail`` is what follows the fixed part."""

    layout: Struct
    fields: Sequence[Field]
    tail: Field | None = None


DRAWINGS: Final[Mapping[str, Drawing]] = {
    "batch": Drawing(
        HEADER,
        (
            Field("baseOffset", "a client sends 0; the log overwrites it"),
            Field("batchLength", "bytes after this field"),
            Field("partitionLeaderEpoch", "set by the log; not covered by the CRC"),
            Field("magic", "2; every format has it at this place"),
            Field("crc", f"CRC-32C of byte {CRC_START} to the end of the batch"),
            Field(
                "attributes",
                "0-2 codec (0 none 1 gzip 2 snappy 3 lz4 4 zstd) | 3 LogAppendTime\n"
                "| 4 transactional | 5 control | 6 baseTimestamp is a delete horizon",
            ),
            Field("lastOffsetDelta", "compaction keeps it, so that a batch keeps its range"),
            Field("baseTimestamp"),
            Field("maxTimestamp"),
            Field("producerId", "-1: none"),
            Field("producerEpoch"),
            Field("baseSequence"),
            Field("recordsCount"),
        ),
        Field("records", "one compressed stream if there is a codec"),
    ),
    "index": Drawing(
        OFFSET_ENTRY,
        (Field("relativeOffset", "last offset of a batch"), Field("position", "where that batch begins")),
    ),
    "timeindex": Drawing(
        TIME_ENTRY,
        (Field("timestamp", "largest timestamp up to this offset"), Field("relativeOffset")),
    ),
    "txnindex": Drawing(
        TRANSACTION_ENTRY,
        (
            Field("version", "0"),
            Field("producerId"),
            Field("firstOffset"),
            Field("lastOffset"),
            Field("lastStableOffset"),
        ),
    ),
    "snapshot": Drawing(
        SNAPSHOT_HEADER,
        (Field("version", "1"), Field("crc", "CRC-32C of what follows this field"), Field("count", "of entries")),
        Field("entries"),
    ),
    "snapshot-entry": Drawing(
        SNAPSHOT_ENTRY,
        (
            Field("producerId"),
            Field("epoch"),
            Field("lastSequence"),
            Field("lastOffset"),
            Field("offsetDelta"),
            Field("timestamp"),
            Field("coordinatorEpoch"),
            Field("currentTxnFirstOffset", "-1: no open transaction"),
        ),
    ),
    "manifest": Drawing(
        MANIFEST_ENTRY,
        (
            Field("baseOffset"),
            Field("endOffset", "one above the segment's last offset"),
            Field("size", "bytes of the .log file"),
            Field("lastCrc", "the crc field of the last batch"),
            Field("chain", f"CRC-32C of the first {CHAINED} bytes of every batch, one after the other"),
            Field("kind", "1 sealed; 0 sealed, chain unknown; 2 the active segment when the log was closed"),
            Field("entryCrc", "CRC-32C of bytes 0 to 35, seeded with the entryCrc before"),
        ),
    ),
}


def draw(drawing: Drawing) -> str:
    """The drawing as lines of text.

    >>> print(draw(Drawing(Struct(">hq"), (Field("epoch"), Field("endOffset", "exclusive")))), end="")
     off  len  type   field      note
       0    2  int16  epoch
       2    8  int64  endOffset  exclusive
    """
    codes = drawing.layout.format.lstrip(">")
    if len(codes) != len(drawing.fields):
        raise ValueError(f"{drawing.layout.format} has {len(codes)} fields, {len(drawing.fields)} are named")
    rows, offset = [("off", "len", "type", "field", "note")], 0
    for code, field in zip(codes, drawing.fields, strict=True):
        size = calcsize(">" + code)
        first, *more = field.note.split("\n")
        rows.append((str(offset), str(size), _TYPES[code], field.name, first))
        rows += [("", "", "", "", line) for line in more]
        offset += size
    if drawing.tail is not None:
        rows.append((str(offset), "", "", *drawing.tail))
    kinds, names = (max(len(row[column]) for row in rows) for column in (2, 3))
    return "".join(
        f"{at:>4}{size:>5}  {kind:{kinds}}  {name:{names}}  {note}".rstrip() + "\n"
        for at, size, kind, name, note in rows
    )


def redraw(page: str) -> str:
    """The page with all its drawings as the code has them; KeyError for one that `DRAWINGS` does not have."""
    return _PLACE.sub(lambda found: found[1] + draw(DRAWINGS[found[2]]) + found[3], page)
