"""The start of a consumer: the words of Kafka's tools, kcat and rpk."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from seglog.cli.options import OptionError, parse_time
from seglog.cli.wire.clients import Cluster
from seglog.cluster.reassignment_plan import Place
from seglog.core.errors import RequestFailedError

_WORDS: Final = {
    "beginning": "beginning",
    "earliest": "beginning",
    "start": "beginning",
    "end": "end",
    "latest": "end",
    "stored": "stored",
}


class StartPosition(NamedTuple):
    """``kind``: beginning, end, stored, offset, last (``value`` records before the end) or time (in ms)."""

    kind: str
    value: int = 0


def parse_start(text: str) -> StartPosition:
    """
    >>> parse_start("latest"), parse_start("17"), parse_start("-5"), parse_start("@2013-01-01T00:00Z")
    (StartPosition(kind='end', value=0), StartPosition(kind='offset', value=17), StartPosition(kind='last', value=5), \
StartPosition(kind='time', value=1356998400000))
    """
    if text in _WORDS:
        return StartPosition(_WORDS[text])
    if re.fullmatch(r"-?[0-9]{1,18}", text):
        number = int(text)
        return StartPosition("last", -number) if text.startswith("-") else StartPosition("offset", number)
    if "@" in text[:2]:  # kcat has s@TIME
        try:
            return StartPosition("time", parse_time(text.partition("@")[2]))
        except ValueError:
            pass
    raise OptionError(f"--offset must be beginning, end, an offset, -N or @TIME, not {text}")


def find_starts(cluster: Cluster, partitions: Sequence[Place], start: StartPosition) -> dict[Place, int]:
    """Each partition's first offset to read. An offset out of range is an error; it is not replaced by another one."""
    if start.kind == "stored":
        raise OptionError("--offset stored needs --group")
    if start.kind == "time":
        return cluster.offsets_from(partitions, start.value)
    first = cluster.first(partitions)
    if start.kind == "beginning":
        return first
    ends = cluster.ends(partitions)
    if start.kind == "end":
        return ends
    if start.kind == "last":
        return {place: max(first[place], ends[place] - start.value) for place in partitions}
    for place in partitions:
        if not first[place] <= start.value <= ends[place]:
            raise RequestFailedError(
                f"topic {place[0]}, partition {place[1]}: offset {start.value} is out of range {first[place]} to "
                f"{ends[place]}"
            )
    return dict.fromkeys(partitions, start.value)
