"""Whether tombstones that a table has not seen may be gone from a compacted log. Pure.

Compaction keeps a tombstone for ``delete.retention.ms`` after the first round that finds it. The table's last run saw
the end of the log, which no round had reached. So a tombstone after that end is there as long as less time has passed.
"""

from __future__ import annotations

from typing import Final

MARGIN_MS: Final = 15 * 60_000
"""For clocks, and for Kafka before 3.1: it counts from the last append to a segment, which an open transaction (at most
``transaction.max.timeout.ms``) may have held back from the table."""


def objection(passed: str, elapsed_ms: int, delete_retention_ms: int | None) -> str | None:
    """Why tombstones may be gone from a log that compaction has ``passed``; None if they are there.

    >>> objection("/data/t-0 is compacted up to offset 9", 3_600_000, 86_400_000)
    >>> objection("/data/t-0 is compacted up to offset 9", 86_400_000, 86_400_000)
    '/data/t-0 is compacted up to offset 9, 86400 s after the last run, and delete.retention.ms is 86400000'
    """
    if delete_retention_ms is not None and elapsed_ms + MARGIN_MS < delete_retention_ms:
        return None
    known = (
        "the log does not tell its delete.retention.ms"
        if delete_retention_ms is None
        else f"delete.retention.ms is {delete_retention_ms}"
    )
    return f"{passed}, {elapsed_ms // 1000} s after the last run, and {known}"


def is_renewal_due(elapsed_ms: int, delete_retention_ms: int | None) -> bool:
    """Whether a run without news should commit that the table still is the end of the log."""
    return delete_retention_ms is not None and 2 * elapsed_ms >= delete_retention_ms
