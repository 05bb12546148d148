"""Names of transactional ids and groups of a query, and of a batch job."""

from __future__ import annotations

from typing import NamedTuple


class SinkNames(NamedTuple):
    """``query`` is a query's id, or stands for a batch job.

    ============================================== ========================================================
    name                                           of what
    ============================================== ========================================================
    ``<prefix>-<query>``                           the group whose offset is the mark of the last batch
    ``<prefix>-<query>-commit``                    the transactional id of who changes the mark
    ``<prefix>-<query>-<generation>-<process>-<n>``  those of tasks
    ============================================== ========================================================

    No two processes ever use the same id for tasks, so none can fence another's transaction by mistake.
    """

    prefix: str
    query: str

    @property
    def group(self) -> str:
        return f"{self.prefix}-{self.query}"

    @property
    def committer(self) -> str:
        return f"{self.group}-commit"

    @property
    def tasks(self) -> str:
        """The prefix of the ids of tasks."""
        return f"{self.group}-"

    def task(self, generation: int, process: str, number: int) -> str:
        return f"{self.tasks}{generation}-{process}-{number}"

    def generation_of(self, transactional_id: str) -> int | None:
        """The generation in an id of a task; None of any other id.

        >>> names = SinkNames("seglog", "q")
        >>> names.generation_of(names.task(7, "ab", 0)), names.generation_of(names.committer)
        (7, None)
        """
        parts = transactional_id.removeprefix(self.tasks).split("-")
        if not transactional_id.startswith(self.tasks) or len(parts) != 3 or not parts[0].isdecimal():
            return None
        return int(parts[0])
