"""`python -m tests.simulation SEED ...`: play these seeds, and say what came of them."""

from __future__ import annotations

import sys

from tests.simulation.scenario import play

for word in sys.argv[1:]:
    done = play(int(word))
    truth = done.truth
    print(
        f"seed {word}: {done.world.steps} steps, {done.world.now:.0f} s, life {done.machine.life}, "
        f"{truth.acknowledged} acknowledged, {truth.read} read, {truth.resumed} resumed, "
        f"faults {sorted(done.rates)}, lossy {done.is_lossy}, "
        f"permissions {None if done.permissions is None else dict(done.permissions.done)}, trace {done.world.trace}"
    )
