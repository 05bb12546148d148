"""`python -m tests.simulation.cluster FIRST [LAST] [seconds=N] [unclean | operators] [away]`: who breaks a promise?
A single seed shows what came last. With ``away`` the metadata store is away again and again."""

from __future__ import annotations

import sys
from collections import Counter

from tests.simulation.cluster.run import SECONDS, run


def main(arguments: list[str]) -> int:
    numbers = [int(one) for one in arguments if one.isdigit()]
    seconds = next((int(one[8:]) for one in arguments if one.startswith("seconds=")), SECONDS)
    first, last = numbers[0], numbers[-1]
    rates = {"away_every": 4_000} if "away" in arguments else {}
    counted: dict[str, Counter[str]] = {
        "records": Counter(),
        "faults": Counter(),
        "operations": Counter(),
        "permissions": Counter(),
    }
    broken = events = refusals = 0
    for seed in range(first, last + 1):
        try:
            unclean, operators = "unclean" in arguments, "operators" in arguments
            one = run(seed, unclean=unclean, operators=operators, rates=rates, seconds=seconds)
        except (AssertionError, RuntimeError) as error:
            if first == last:
                raise
            broken += 1
            print(f"seed {seed}: {error}", flush=True)
            continue
        events += one.events
        counted["records"].update(one.clients.outcomes)
        counted["faults"].update(one.nemesis.struck)
        counted["operations"].update(one.operators.done)
        if one.cluster.permissions is not None:
            counted["permissions"].update(one.cluster.permissions.done)
        refusals += one.cluster.history.refusals
    print(f"{last + 1 - first} seeds, {broken} broken, {events} events, {refusals} cuts refused")
    for name, counter in counted.items():
        print(f"{name}: {dict(counter.most_common())}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
