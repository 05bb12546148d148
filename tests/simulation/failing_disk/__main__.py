"""`python -m tests.simulation.failing_disk FIRST [LAST]`: which error lies? A single seed shows what was found."""

from __future__ import annotations

import logging
import sys

from tests.simulation.failing_disk.run import STEPS, run
from tests.simulation.seeds import Counts, run_seeds


def _run(seed: int, _: int) -> Counts:
    one = run(seed)
    return one.counted, one.faults


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)  # logs whose disk fails say so
    sys.exit(run_seeds(sys.argv[1:], _run, STEPS))
