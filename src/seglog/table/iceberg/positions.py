"""Up to which offset a table has the records of each partition. Pure.

Each snapshot names a file ``metadata/positions-<uuid>.json`` in its summary::

    {"version": 1, "topic": "flights", "id": "pYd…", "partitions": {"0": [1200, 3], "1": [900, 3]}}

A partition's numbers are the offset after its last record in the table, and the leader epoch of the offset before that
one, -1 if it is unknown. The file never changes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from seglog.core.errors import CorruptCheckpointError

_VERSION: Final = 1
_MOST_NAMED: Final = 200
"""Changed partitions that a snapshot's summary names; all kept summaries are in each metadata file."""


class Position(NamedTuple):
    """The table has the committed records below ``upto``; ``epoch`` is the leader epoch of the offset before it."""

    upto: int
    epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """The positions of a topic's partitions; ``topic_id`` is None of a topic without one."""

    topic: str
    topic_id: str | None = None
    partitions: Mapping[int, Position] = field(default_factory=dict)

    def advanced(self, changed: Mapping[int, Position]) -> Positions:
        """The positions after a run, which changed some of them."""
        return Positions(topic=self.topic, topic_id=self.topic_id, partitions={**self.partitions, **changed})


def encode_positions(positions: Positions) -> bytes:
    content = {
        "version": _VERSION,
        "topic": positions.topic,
        "id": positions.topic_id,
        "partitions": {str(number): list(positions.partitions[number]) for number in sorted(positions.partitions)},
    }
    return json.dumps(content, separators=(",", ":")).encode()


def decode_positions(data: bytes, file: str | None = None) -> Positions:
    """Raises `CorruptCheckpointError` with ``file`` if this is not such a file."""
    try:
        content = json.loads(data)
        if content["version"] != _VERSION:
            raise ValueError(f"version {content['version']}, and this seglog knows {_VERSION}")
        return Positions(
            topic=str(content["topic"]),
            topic_id=content["id"],
            partitions={
                int(number): Position(int(upto), int(epoch)) for number, (upto, epoch) in content["partitions"].items()
            },
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptCheckpointError(f"not the positions of a table: {error}", file=file) from error


def changes_as_text(starts: Mapping[int, int], after: Positions) -> str:
    """The partitions of ``starts`` for a snapshot's summary: ``{"0": [from, to, leader epoch]}``; empty if too many."""
    if len(starts) > _MOST_NAMED:
        return ""
    changed = {str(number): [starts[number], *after.partitions[number]] for number in sorted(starts)}
    return json.dumps(changed, separators=(",", ":"))
