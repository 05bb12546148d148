"""Bugs of a log on a full disk, put in on purpose: errors that say that nothing has changed after something has."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import pytest

from seglog.core.types import MAX_INT64
from seglog.storage.log.finished_segment import FinishedSegment
from seglog.storage.log.log import AppendResult, Log

Patch = pytest.MonkeyPatch


class Bug(NamedTuple):
    name: str
    plant: Callable[[Patch], None]


def _due_flush(patch: Patch) -> None:
    """An append whose flush is due, and finds the disk full, is refused."""

    def grown(self: Log, end_offset: int, flush_messages: int) -> None:
        honest(self, end_offset, MAX_INT64)
        if end_offset - self.recovery_point >= flush_messages:
            self.flush()

    honest = Log._grown
    patch.setattr(Log, "_grown", grown)


def _roll_after_segment(patch: Patch) -> None:
    """A segment that was taken over is refused if the roll after it finds the disk full."""

    def append_segment(self: Log, segment: FinishedSegment, *more: Any) -> AppendResult:
        with patch.context() as inner:
            inner.setattr(Log, "_without_refusal", lambda _: nullcontext())
            return honest(self, segment, *more)

    honest = Log.append_segment
    patch.setattr(Log, "append_segment", append_segment)


BUGS = (Bug("due-flush", _due_flush), Bug("roll-after-segment", _roll_after_segment))
