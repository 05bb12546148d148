"""Where reading starts and ends, as options say it: by offset, by the words ``earliest`` and ``latest``, or by time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from seglog.core.types import TopicPartition
from seglog.spark.options import values

LATEST: Final = -1
EARLIEST: Final = -2
"""The numbers that stand for an offset which is looked up, in options as in the protocol."""

Offsets = int | Mapping[TopicPartition, int]
"""EARLIEST, LATEST, or an offset for each partition (in which -2 and -1 are allowed as well)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimestampBound:
    """The first offset whose record has this timestamp (ms) or a later one; one for all, or one for each partition.

    ``strategy`` says what a start is where no record is that late; an end is the latest offset then.
    """

    timestamps: int | Mapping[TopicPartition, int]
    strategy: Literal["error", "latest"] = "error"


Bound = Offsets | TimestampBound


def parse_offsets(name: str, value: str) -> Offsets:
    """``earliest``, ``latest`` or ``{"topic": {"0": 12}}``."""
    word = value.strip().lower()
    if word in ("earliest", "latest"):
        return EARLIEST if word == "earliest" else LATEST
    example = f"{values.OFFSETS_EXAMPLE}, or earliest, or latest"
    return values.per_partition(name, value, low=EARLIEST, example=example)


def option_name(side: Literal["starting", "ending"], bound: Bound) -> str:
    """The option that such a bound comes from."""
    if not isinstance(bound, TimestampBound):
        return f"{side}Offsets"
    return f"{side}Timestamp" if isinstance(bound.timestamps, int) else f"{side}OffsetsByTimestamp"
