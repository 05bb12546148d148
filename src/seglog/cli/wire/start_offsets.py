"""Where a consumer begins: the words of Kafka's tools, kcat and rpk."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from seglog.cli.options import parse_time
from seglog.cli.wire.clients import Cluster
from seglog.core.errors import RequestFailedError

_WORDS: Final = {
    "beginning": "beginning",
    "earliest": "beginning",
    "start": "beginning",
    "end": "end",
    "latest": "end",
    "stored": "stored",
}


class Start(NamedTuple):
    """``kind``: beginning, end, stored, offset, last (``value`` records before the end) or time (in ms)."""

    kind: str
    value: int = 0


def parse_start(text: str) -> Start:
    """
    >>> parse_start("latest"), parse_start("17"), parse_start("-5"), parse_start("@2013-01-01T00:00Z")
    (Start(kind='end', value=0), Start(kind='offset', value=17), Start(kind='last', value=5), \
Start(kind='time', value=1356998400000))
    """
    if text in _WORDS:
        return Start(_WORDS[text])
    if re.fullmatch(r"-?[0-9]{1,18}", text):
        number = int(text)
        return Start("last", -number) if text.startswith("-") else Start("offset", number)
    if "@" in text[:2]:  # kcat has s@TIME
        try:
            return Start("time", parse_time(text.partition("@")[2]))
        except ValueError:
            pass
    raise ValueError(f"--offset is beginning, end, an offset, -N or @TIME, not {text}")


def find_starts(cluster: Cluster, partitions: Sequence[tuple[str, int]], start: Start) -> dict[tuple[str, int], int]:
    """The offset at which to begin in each partition. One that is not there is an error, and not another offset."""
    if start.kind == "stored":
        raise ValueError("--offset stored needs --group")
    first = {at: found.offset for at, found in cluster.offsets(partitions, "earliest").items()}
    if start.kind == "beginning":
        return first
    last = {at: found.offset for at, found in cluster.offsets(partitions, "latest").items()}
    if start.kind == "end":
        return last
    if start.kind == "last":
        return {at: max(first[at], last[at] - start.value) for at in partitions}
    if start.kind == "time":
        found = cluster.offsets(partitions, start.value)
        return {at: found[at].offset if found[at].offset >= 0 else last[at] for at in partitions}
    for at in partitions:
        if not first[at] <= start.value <= last[at]:
            raise RequestFailedError(
                f"topic {at[0]}, partition {at[1]}: offset {start.value} is out of range {first[at]} to {last[at]}"
            )
    return dict.fromkeys(partitions, start.value)
