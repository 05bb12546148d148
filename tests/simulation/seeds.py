"""Runs seeds of a simulation from the command line: `FIRST [LAST] [seconds=N]`. A single seed raises its error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from seglog.core.errors import SeglogError
from tests.simulation.wire import LostError

Counts = tuple[Counter[str], Counter[str]]
"""The operations of a seed, and the faults that struck it."""


def run_seeds(arguments: Sequence[str], run: Callable[[int, int], Counts], seconds: int) -> int:
    """Run each seed for ``seconds``, unless the arguments say otherwise, and print the sums. Returns an exit code."""
    numbers = [int(one) for one in arguments if one.isdigit()]
    seconds = next((int(one[8:]) for one in arguments if one.startswith("seconds=")), seconds)
    first, last = numbers[0], numbers[-1]
    counted: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    broken = 0
    for seed in range(first, last + 1):
        try:
            done, struck = run(seed, seconds)
        except (AssertionError, RuntimeError, LostError, SeglogError) as error:
            if first == last:
                raise
            broken += 1
            print(f"seed {seed}: {error}", flush=True)
            continue
        counted += done
        faults += struck
    print(f"{last + 1 - first} seeds, {broken} broken: {dict(counted)}")
    print(f"faults: {dict(faults.most_common())}")
    return 1 if broken else 0
