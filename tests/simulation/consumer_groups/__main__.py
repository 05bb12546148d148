"""`python -m tests.simulation.consumer_groups FIRST [LAST] [seconds=N]`: does a partition have two owners, or none? A
single seed shows what came last."""

from __future__ import annotations

import sys
from collections import Counter

from tests.simulation.consumer_groups.run import SECONDS, run
from tests.simulation.wire import LostError


def main(arguments: list[str]) -> int:
    numbers = [int(one) for one in arguments if one.isdigit()]
    seconds = next((int(one[8:]) for one in arguments if one.startswith("seconds=")), SECONDS)
    first, last = numbers[0], numbers[-1]
    counted: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    broken = 0
    for seed in range(first, last + 1):
        try:
            one = run(seed, seconds=seconds)
        except (AssertionError, RuntimeError, LostError) as error:
            if first == last:
                raise
            broken += 1
            print(f"seed {seed}: {error}", flush=True)
            continue
        counted += one.counted
        faults += one.faults
    print(f"{last + 1 - first} seeds, {broken} broken: {dict(counted)}")
    print(f"faults: {dict(faults.most_common())}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
