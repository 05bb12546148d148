"""Whole commands beside each other, and what is left of them without their starts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.sides import Compared, Cost, turn_about

_ROOT: Final = Path(__file__).parents[1]
ENVIRONMENT: Final = {**os.environ, "PYTHONPATH": os.pathsep.join((str(_ROOT), str(_ROOT / "src")))}
_NOISE: Final = 0.1
"""Part of a start by which two of them differ."""


def seglog(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "seglog", *map(str, arguments)]


def python(code: str, *arguments: str | Path) -> list[str]:
    return [sys.executable, "-c", code, *map(str, arguments)]


def run(command: Sequence[str], out: Path | None = None) -> None:
    """Run to the end; its text goes to ``out``, or nowhere."""
    with open(out or os.devnull, "wb") as file:
        subprocess.run(command, stdout=file, env=ENVIRONMENT, check=True)


def beside(ours: Sequence[str], theirs: Sequence[str], rounds: int) -> Compared:
    """Both commands turn about, their output thrown away."""
    return turn_about(lambda: run(ours), lambda: run(theirs), rounds)


def without(compared: Compared, starts: Compared) -> Compared | None:
    """What the commands take beyond their starts; None where that cannot be told from the noise of a start."""
    rest = [Cost(whole.wall - start.wall, whole.cpu - start.cpu) for whole, start in zip(compared, starts, strict=True)]
    if any(min(cost) < _NOISE * max(start) for cost, start in zip(rest, starts, strict=True)):
        return None
    return Compared(*rest)


def show(title: str, compared: Compared | None, size: int = 0) -> None:
    """A line: seconds and CPU seconds of both sides, MB/s of ``size`` bytes, and how many times as fast we are."""
    if compared is None:
        print(f"  {title:24} too little to tell from the noise: larger logs with SEGLOG_BENCH_MB=1024", flush=True)
        return
    sides = []
    for name, cost in zip(("seglog", "Kafka"), compared, strict=True):
        speed = f", {size / cost.wall / 1e6:.0f} MB/s" if size else ""
        sides.append(f"{name} {cost.wall:.2f} s{speed} (CPU {cost.cpu:.2f} s)")
    wall, cpu = 1 / compared.wall_ratio, 1 / compared.cpu_ratio
    print(f"  {title:24} {'; '.join(sides)}: {wall:.1f}x as fast, by CPU {cpu:.1f}x", flush=True)
