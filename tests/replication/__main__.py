"""`python -m tests.replication FIRST [LAST]`: simulated worlds of these seeds, and which of them break a promise."""

from __future__ import annotations

import logging
import sys
from collections import Counter

from tests.replication.run import run


def main(arguments: list[str]) -> int:
    logging.disable(logging.WARNING)
    first = int(arguments[0])
    last = int(arguments[1]) if len(arguments) > 1 else first
    outcomes: Counter[str] = Counter()
    broken = 0
    for seed in range(first, last + 1):
        try:
            outcomes.update(run(seed, partitions=1 + seed % 2, seconds=20).clients.outcomes)
        except AssertionError as error:
            broken += 1
            print(f"seed {seed}: {error}", flush=True)
    print(f"{last + 1 - first} seeds, {broken} broken; records: {dict(outcomes)}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
