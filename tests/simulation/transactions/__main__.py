"""`python -m tests.simulation.transactions FIRST [LAST] [seconds=N]`: whose transactions are torn? A single seed shows
what came last."""

from __future__ import annotations

import sys
from collections import Counter

from tests.simulation.seeds import Counts, run_seeds
from tests.simulation.transactions.run import SECONDS, run


def _run(seed: int, seconds: int) -> Counts:
    one = run(seed, seconds=seconds)
    report = one.report
    counted = Counter(
        events=one.events,
        committed=report.committed,
        aborted=report.aborted,
        processed=report.processed,
        g0=report.g0,
        ww_cycles=report.ww_cycles,
        read=report.report.read,
    )
    return counted, Counter(one.nemesis.struck) + Counter(one.operators.done)


if __name__ == "__main__":
    sys.exit(run_seeds(sys.argv[1:], _run, SECONDS))
