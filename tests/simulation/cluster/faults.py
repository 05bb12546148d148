"""The faults of a simulated world and their rates, drawn once per seed: some worlds are quiet, and some are wild."""

from __future__ import annotations

import random

from tests.kit.virtual_store import Fate
from tests.simulation.cluster.scenario import Scenario


class Faults:
    """Rates are chances in one, delays and times between two (``_every``, 0: never) milliseconds."""

    def __init__(self, seed: int, scenario: Scenario) -> None:
        self.rng = rng = random.Random(seed)
        self.is_on = False
        # Links, store and disks
        self.loss = rng.choice((0, 0, 0.001, 0.01))
        """How often a connection is cut with a piece that is sent."""
        self.slow = rng.choice((0, 0.001, 0.01))
        self.store_lost = rng.choice((0, 0, 0.005, 0.05))
        self.store_slow = rng.choice((0, 0.005, 0.05))
        self.watch_slow = random.Random(seed + 9).choice((0, 0, 0.02, 0.2))
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
        self.coordinators_every = random.Random(seed + 10).choice((0, 1_500, 3_000)) if scenario.coordinators else 0
        self.late = random.Random(seed + 12).choice((0.02, 0.05, 0.2))
        """How often a producer aborts its transaction while a part of it is under way."""
        self.end_again = self.late
        """How often an EndTxn arrives once more after its answer."""
        self._flushes = random.Random(seed + 7)
        self.of_principals = random.Random(seed + 14)
        self.cuts: set[int] = set()
        """Nodes whose calls do not get to the metadata store."""

    def heal(self) -> None:
        """From now on all is well."""
        self.is_on = False
        self.cuts.clear()

    def _happens(self, chance: float) -> bool:
        return self.is_on and chance > 0 and self.rng.random() < chance

    def loses(self) -> bool:
        """Whether the connection is cut with this piece."""
        return self._happens(self.loss)

    def delay(self) -> float:
        """Seconds until a piece that is sent arrives."""
        if self._happens(self.slow):
            return self.rng.uniform(0.05, 3.0)
        return self.rng.uniform(0.0005, 0.005)

    def store_delay(self) -> float:
        if self._happens(self.store_slow):
            return self.rng.uniform(0.05, 2.5)
        return self.rng.uniform(0.001, 0.01)

    def watch_delay(self) -> float:
        """Seconds until a broker learns of a change in the store."""
        return self.rng.uniform(0.05, 2.5) if self._happens(self.watch_slow) else self.rng.uniform(0.001, 0.01)

    def store_call(self, node_id: int) -> Fate:
        is_cut = node_id in self.cuts
        if is_cut or self._happens(self.store_lost):
            return Fate(
                self.rng.uniform(0.5, 1.5), is_applied=not is_cut and self.rng.random() < 0.5, is_answered=False
            )
        return Fate(self.store_delay())

    def thread_delay(self) -> float:
        """Seconds until a thread begins, and again until its result is known."""
        return self._flushes.choice((0.0, 0.0, 0.001, 0.001, 0.003, 0.02))

    def fsync_delay(self) -> float:
        """For so long an fsync holds up its broker."""
        return self.rng.uniform(0.02, 3.0) if self._happens(self.disk_slow) else 0.0
