"""How far compaction has changed a partition, and as of which offsets its newest values are still known. Pure.

A round removes a record if a newer one of its key lies below the round's end, the cleaner's point. As of an offset
below that point, the key may have had the value that is now gone. A round never touches the active segment.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerBounds:
    """Of one replica. ``active`` is the base offset of its last segment, ``point`` the end of the last round.

    ``point`` is None if no file tells it, 0 before the first round. ``is_moving``: a round has begun to replace
    segments, or may have. Its end is not in the checkpoint yet.
    """

    directory: str
    active: int
    point: int | None
    is_moving: bool

    def objection(self, until: int) -> str | None:
        """Why the newest values as of offset ``until`` may be gone; None if they are there.

        >>> bounds = CleanerBounds(directory="/data/t-0", active=100, point=80, is_moving=False)
        >>> bounds.objection(80), bounds.objection(79)
        (None, '/data/t-0 is compacted up to offset 80')
        """
        if until >= self.active:
            return None
        if self.point is None:
            return (
                f"beside {self.directory} there is no cleaner-offset-checkpoint, so how far it is compacted is unknown"
            )
        if until < self.point:
            return f"{self.directory} is compacted up to offset {self.point}"
        if self.is_moving:
            return f"segments of {self.directory} are being replaced, and how far a compaction reaches is not known yet"
        return None
