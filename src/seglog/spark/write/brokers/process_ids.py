"""Transactional ids that only this process uses.

A transaction stays open after its task, until the driver has decided about it. If two processes had the same id, a late
task in one would abort what a task in the other has finished. So each process draws ids of its own, and uses them again
for later jobs of the same run: Spark runs the jobs of a run one after the other, so the transactions of an earlier one
have ended, or never will be decided.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from seglog.spark.write.brokers.names import SinkNames

_MOST: Final = 64
"""Runs whose ids are remembered."""


class ProcessId(NamedTuple):
    """The parts of a transactional id that tell it from those of other processes and jobs."""

    process: str
    number: int


@dataclass
class _Ids:
    process: str = field(default_factory=lambda: secrets.token_hex(8))
    job: str = ""
    used: int = 0


_runs: Final[dict[tuple[int, SinkNames, str, int], _Ids]] = {}


def take(names: SinkNames, run: str, generation: int, job: str) -> ProcessId:
    """An id that no transaction of ``job`` has."""
    key = (os.getpid(), names, run, generation)
    ids = _runs.pop(key, None) or _Ids()
    _runs[key] = ids
    while len(_runs) > _MOST:
        _runs.pop(next(iter(_runs)))
    if ids.job != job:
        ids.job, ids.used = job, 0
    ids.used += 1
    return ProcessId(ids.process, ids.used - 1)
