"""`python -m tests.simulation.consumer_groups FIRST [LAST] [seconds=N]`: does a partition have two owners, or none? A
single seed shows what came last."""

from __future__ import annotations

import sys

from tests.simulation.consumer_groups.run import SECONDS, run
from tests.simulation.seeds import Counts, run_seeds


def _run(seed: int, seconds: int) -> Counts:
    one = run(seed, seconds=seconds)
    return one.counted, one.faults


if __name__ == "__main__":
    sys.exit(run_seeds(sys.argv[1:], _run, SECONDS))
