"""The findings of verification: each has a place, a reason and a severity."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple


class Severity(StrEnum):
    """DAMAGE: bytes that no Kafka from 2.8 to 4.4 leaves behind. NOTE: legal but unusual."""

    DAMAGE = "damage"
    NOTE = "note"


class Finding(NamedTuple):
    """``position`` counts bytes from the start of ``file``, -1: the whole; ``offset`` is one of the log, or None."""

    file: str
    position: int
    offset: int | None
    reason: str
    severity: Severity = Severity.DAMAGE

    def __str__(self) -> str:
        where = [self.file]
        if self.position >= 0:
            where.append(f"position {self.position}")
        if self.offset is not None:
            where.append(f"offset {self.offset}")
        return f"{', '.join(where)}: {self.reason}"


def damage(file: str, reason: str, *, position: int = -1, offset: int | None = None) -> Finding:
    return Finding(file, position, offset, reason)


def note(file: str, reason: str, *, position: int = -1, offset: int | None = None) -> Finding:
    return Finding(file, position, offset, reason, Severity.NOTE)


def has_damage(findings: Iterable[Finding]) -> bool:
    return any(finding.severity is Severity.DAMAGE for finding in findings)
