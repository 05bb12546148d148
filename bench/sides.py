"""Two sides doing the same work, turn about, so that a noisy machine is noisy for both."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class Cost(NamedTuple):
    """Seconds on the wall and of CPU, by default of this process and of children it waited for."""

    wall: float
    cpu: float


class Compared(NamedTuple):
    """Medians of both sides and their ratio: above 1, the first one took longer."""

    first: Cost
    second: Cost

    @property
    def wall_ratio(self) -> float:
        return self.first.wall / self.second.wall

    @property
    def cpu_ratio(self) -> float:
        return self.first.cpu / self.second.cpu


def own_cpu() -> float:
    """Seconds of CPU of this process and of children it waited for."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def tree_cpu() -> float:
    """Seconds of CPU of this process and of all processes below it: Spark's JVM and its Python workers."""
    ticks: dict[int, int] = {}
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = path.read_text().rpartition(")")[2].split()
            parents[int(path.parent.name)], ticks[int(path.parent.name)] = int(fields[1]), sum(map(int, fields[11:15]))

    def is_below(process: int) -> bool:
        return process == os.getpid() or (process in parents and is_below(parents[process]))

    return sum(used for process, used in ticks.items() if is_below(process)) / os.sysconf("SC_CLK_TCK")


def measure(work: Callable[[], object], cpu: Callable[[], float] = own_cpu) -> Cost:
    wall, before = time.perf_counter(), cpu()
    work()
    return Cost(time.perf_counter() - wall, cpu() - before)


def turn_about(
    first: Callable[[], object],
    second: Callable[[], object],
    rounds: int = 5,
    *,
    before: Callable[[], object] = lambda: None,
    cpu: Callable[[], float] = own_cpu,
) -> Compared:
    """Medians of ``rounds`` rounds, after one that is not counted; the sides begin in turn.

    ``before`` runs before each side's turn, outside of the time that is taken.
    """
    before()
    first()
    before()
    second()
    costs: tuple[list[Cost], list[Cost]] = ([], [])
    sides = (first, second)
    for number in range(rounds):
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            before()
            costs[side].append(measure(sides[side], cpu))
    return Compared(*map(median_of, costs))


def in_turn(
    sides: Mapping[str, Callable[[], object]], rounds: int = 3, *, cpu: Callable[[], float] = own_cpu
) -> dict[str, Cost]:
    """The median of ``rounds`` rounds for each of several sides, after one that is not counted; the order rotates."""
    names = list(sides)
    for name in names:
        sides[name]()
    costs: dict[str, list[Cost]] = {name: [] for name in names}
    for number in range(rounds):
        for name in (*names[number % len(names) :], *names[: number % len(names)]):
            costs[name].append(measure(sides[name], cpu))
    return {name: median_of(several) for name, several in costs.items()}


def median_of(costs: Sequence[Cost]) -> Cost:
    return Cost(statistics.median(cost.wall for cost in costs), statistics.median(cost.cpu for cost in costs))
