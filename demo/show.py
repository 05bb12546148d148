"""The output of the demo: steps and their times; colour and a spinner on a terminal, otherwise plain lines."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.panel import Panel
from rich.status import Status
from rich.table import Table
from rich.text import Text


class Step:
    """A step that is running."""

    def __init__(self, name: str, status: Status) -> None:
        self.facts: list[str] = []
        self._name = name
        self._status = status
        self._percent = -1

    def fact(self, text: str) -> None:
        self.facts.append(text)

    def progress(self, done: int, total: int) -> None:
        """Show progress beside the spinner; cheap enough to be called for each batch."""
        percent = 100 * done // max(total, 1)
        if percent != self._percent:
            self._percent = percent
            self._status.update(Text(f"{self._name} … {percent} %"))


class Show:
    """Prints steps; keeps their times for the summary. Times in seconds."""

    def __init__(self) -> None:
        self.console = Console(highlight=False)
        self.times: dict[str, float] = {}
        self.story: list[tuple[str, str, list[str]]] = []
        """Each step that ended: its name in the summary, its title and its facts."""

    def title(self, text: str, subtitle: str) -> None:
        self.console.print(Panel(Text(subtitle), title=Text(text, style="bold"), expand=False, padding=(0, 2)))

    @contextmanager
    def step(self, name: str, short: str) -> Iterator[Step]:
        """Time a step, for the summary under ``short``, and print its facts at its end."""
        start = time.perf_counter()
        self.console.print()
        with self.console.status(Text(f"{name} …")) as status:
            step = Step(name, status)
            yield step
        took = time.perf_counter() - start
        self._spend(short, took)
        self.story.append((short, name, step.facts))
        self.console.print(Text.assemble(("● ", "green"), (name, "bold"), (f"  {took:.1f} s", "dim")))
        for fact in step.facts:
            self.line(f"  {fact}")

    def command(self, arguments: Sequence[str]) -> None:
        """Print and run a command of ``seglog``; exit if it fails."""
        self.console.print()
        self.console.print(Text.assemble(("$ ", "dim"), ("seglog " + " ".join(arguments), "bold cyan")), soft_wrap=True)
        sys.stdout.flush()
        start = time.perf_counter()
        code = subprocess.run([sys.executable, "-m", "seglog", *arguments], check=False).returncode
        self._spend("tools", time.perf_counter() - start)
        if code != 0:
            raise SystemExit(f"seglog {' '.join(arguments)} ended with {code}")

    def _spend(self, name: str, seconds: float) -> None:
        self.times[name] = self.times.get(name, 0.0) + seconds

    def sql(self, query: str) -> None:
        self.console.print(Text(query, style="cyan"), soft_wrap=True)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A table; all columns but the first are numbers."""
        table = Table(title=title, title_justify="left", title_style="bold", header_style="dim")
        for number, column in enumerate(columns):
            table.add_column(column, justify="left" if number == 0 else "right")
        for row in rows:
            table.add_row(*row)
        self.console.print(table)

    def line(self, text: str = "", style: str = "") -> None:
        self.console.print(Text(text, style=style), soft_wrap=True)
