"""`python -m tests.simulation.transactions FIRST [LAST] [seconds=N] [ranges]`: whose transactions are torn? A single
seed shows what came last. With ``ranges`` a client also reads ranges of offsets that it chose before."""

from __future__ import annotations

import sys
from collections import Counter

from tests.simulation.seeds import Counts, run_seeds
from tests.simulation.transactions.run import SECONDS, draw, run


def _run(seed: int, seconds: int) -> Counts:
    scenario = draw(seed)._replace(ranges="ranges" in sys.argv)
    one = run(seed, scenario=scenario, seconds=seconds)
    report = one.report
    counted = Counter(
        events=one.events,
        committed=report.committed,
        aborted=report.aborted,
        processed=report.processed,
        g0=report.g0,
        ww_cycles=report.ww_cycles,
        read=report.report.read,
        ranges=len(one.ranges.done),
    )
    return counted, Counter(one.nemesis.struck) + Counter(one.operators.done)


if __name__ == "__main__":
    sys.exit(run_seeds(sys.argv[1:], _run, SECONDS))
