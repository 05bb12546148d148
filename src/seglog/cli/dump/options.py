"""What `seglog dump` prints as text: the options of DumpLogSegments, in one value."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from seglog.core.types import MAX_INT32, Buffer

Decoder = Callable[[Buffer | None, Buffer | None, int], tuple[str | None, str | None]]
"""Turns key, value and offset of a record into the text after ``key:`` and ``payload:``; None is not printed."""


class DumpOptions(NamedTuple):
    """``deep``: a line for each record; ``contents``: with key and value; ``skip_metadata``: with nothing else.

    ``sanity_only``: check indexes as a broker does at its start; ``quiet``: verify indexes and print no entries.
    ``max_message_bytes``: the largest batch that an index entry may point to. ``max_bytes``: of each log.
    """

    deep: bool = False
    contents: bool = False
    skip_metadata: bool = False
    decoder: Decoder | None = None
    sanity_only: bool = False
    quiet: bool = False
    max_message_bytes: int = 5 << 20
    max_bytes: int = MAX_INT32
