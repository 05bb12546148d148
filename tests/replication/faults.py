"""What goes wrong in a simulated world, and how often: drawn once a seed, so that some are quiet and some wild."""

from __future__ import annotations

import random
from typing import NamedTuple

from tests.replication.scenario import Scenario


class Fate(NamedTuple):
    """What becomes of a call of the store."""

    delay: int
    is_applied: bool
    is_answered: bool


class Faults:
    """Rates are chances in one, delays and times between two (``_every``, 0: never) milliseconds."""

    def __init__(self, seed: int, scenario: Scenario) -> None:
        self.rng = rng = random.Random(seed)
        self.nodes = scenario.nodes
        self.is_on = True
        # Links, store and disks
        self.loss = rng.choice((0, 0, 0.01, 0.1))
        self.twice = rng.choice((0, 0, 0.02, 0.1))
        self.slow = rng.choice((0, 0.01, 0.1))
        self.store_lost = rng.choice((0, 0, 0.01, 0.1))
        self.store_slow = rng.choice((0, 0.02, 0.2))
        self.disk_slow = rng.choice((0, 0, 0, 0.1))
        # What happens to brokers
        self.crash_every = rng.choice((0, 4_000, 8_000))
        self.power_every = rng.choice((0, 0, 5_000))
        self.pause_every = rng.choice((0, 0, 5_000))
        self.cut_every = rng.choice((0, 5_000))
        self.expire_every = rng.choice((0, 0, 4_000))
        self.stop_every = rng.choice((0, 0, 6_000))
        self.disk_every = rng.choice((0, 0, 0, 8_000))
        self.clock_every = rng.choice((0, 0, 3_000))
        # What is asked of the cluster meanwhile
        self.reassign_every = rng.choice((0, 0, 3_000)) if scenario.nodes > scenario.replicas else 0
        self.prefer_every = rng.choice((0, 0, 2_000))
        self.configure_every = rng.choice((0, 0, 0, 5_000))
        self.delete_every = rng.choice((0, 0, 0, 2_000))
        self.away_every = random.Random(seed + 2).choice((0, 0, 0, 5_000))
        self.fill_every = random.Random(seed + 3).choice((0, 0, 0, 0, 0, 0, 0, 4_000))
        # What operators do, and the power company
        self.blackout_every = rng.choice((0, 5_000, 8_000)) if scenario.operators else 0
        self.tamper_every = rng.choice((2_000, 4_000)) if scenario.operators else 0
        self.put_back_every = random.Random(seed + 6).choice((0, 0, 0, 4_000)) if scenario.operators else 0
        self.mistake_every = random.Random(seed + 4).choice((0, 0, 4_000)) if scenario.operators else 0
        self.install_every = random.Random(seed + 5).choice((0, 0, 0, 0, 0, 0, 0, 3_000))
        self.choose_every = rng.choice((0, 0, 6_000)) if scenario.operators else 0
        self._flushes = random.Random(seed + 7)
        self.cuts: set[tuple[int, int]] = set()
        self.away: set[int] = set()
        """Nodes for which the metadata store is away: nothing of theirs gets there, and they are told nothing."""

    @property
    def is_away_for_all(self) -> bool:
        return len(self.away) == self.nodes

    def heal(self) -> None:
        """From now on all is well."""
        self.is_on = False
        self.cuts.clear()

    def _happens(self, chance: float) -> bool:
        return self.is_on and chance > 0 and self.rng.random() < chance

    def deliveries(self, source: int, target: int) -> list[int]:
        """After how many milliseconds each copy of a message arrives."""
        if (source, target) in self.cuts or self._happens(self.loss):
            return []
        copies = 2 if self._happens(self.twice) else 1
        return [self._delay() for _ in range(copies)]

    def _delay(self) -> int:
        if self._happens(self.slow):
            return self.rng.randrange(50, 3_000)
        return self.rng.randrange(1, 6)

    def store_delay(self) -> int:
        if self._happens(self.store_slow):
            return self.rng.randrange(50, 2_500)
        return self.rng.randrange(1, 10)

    def store_call(self, node_id: int) -> Fate:
        if node_id in self.away or (node_id, 0) in self.cuts or self._happens(self.store_lost):
            is_applied = self.rng.random() < 0.5 and (node_id, 0) not in self.cuts and node_id not in self.away
            return Fate(self.rng.randrange(500, 1_500), is_applied, is_answered=False)
        return Fate(self.store_delay(), is_applied=True, is_answered=True)

    def flush_delay(self) -> int:
        """How long a flush takes that holds up nothing but what waits for it."""
        return self._flushes.choice((0, 1, 3, 10, 40))

    def fsync_delay(self) -> int:
        """For so long an fsync holds up its broker."""
        return self.rng.randrange(20, 3_000) if self._happens(self.disk_slow) else 0

    def cut(self) -> tuple[int, int]:
        """Cut one direction of a link between two nodes, or a node's to the store (0); which."""
        source, target = self.rng.sample(range(self.nodes + 1), 2)
        link = (source, target) if source else (target, 0)
        self.cuts.add(link)
        return link
