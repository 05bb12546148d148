"""A consumer group of two processes, one of which is killed, and the books on the records that each has read.

The books count every flight once. A member that takes over starts from the offset that its predecessor committed; later
reads of the predecessor no longer count.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

GROUP: Final = "carriers"
_PATIENCE: Final = 60


class Read(NamedTuple):
    """Offsets of a partition that a member has read: ``first`` to before ``end``."""

    member: str
    first: int
    end: int
    carriers: Counter[str]


class Books:
    """Counts the reports of members, in their order."""

    def __init__(self) -> None:
        self.assigned: dict[str, list[int]] = {}
        self.committed: Counter[str] = Counter()
        """The number of commits of each member."""
        self.uncommitted: set[str] = set()
        """Members with reads that they have not committed yet."""
        self.taken_over: dict[int, int] = {}
        """The offset from which a later member continued, by partition."""
        self.twice = 0
        """Records that were read again, because their first reader died before its commit."""
        self.wrong: list[str] = []
        self._reads: dict[int, list[Read]] = {}
        self._owners: dict[int, str] = {}

    def enter(self, line: bytes) -> None:
        """Enter one line of a member."""
        member, what, *rest = json.loads(line)
        if what == "assigned":
            (self.assigned[member],) = rest
            self._owners.update(dict.fromkeys(self.assigned[member], member))
        elif what == "committed":
            self.committed[member] += 1
            self.uncommitted.discard(member)
        elif what == "read":
            partition, first, end, carriers = rest
            self.uncommitted.add(member)
            if self._owners.get(partition, member) == member:
                self._read(partition, Read(member, first, end, Counter(carriers)))
            else:  # the group has removed this member: its commit is refused, and another member has read these records
                self.twice += end - first

    def _read(self, partition: int, read: Read) -> None:
        reads = self._reads.setdefault(partition, [])
        if reads and reads[-1].member != read.member:
            self.taken_over[partition] = read.first
        while reads and reads[-1].first >= read.first:
            again = reads.pop()
            self.twice += again.end - again.first
        end = reads[-1].end if reads else 0
        if end != read.first:
            self.wrong.append(f"partition {partition} was read up to {end}, and then from {read.first}")
        if sum(read.carriers.values()) != read.end - read.first:
            self.wrong.append(f"partition {partition}: {read.first} to {read.end} were {sum(read.carriers.values())}")
        reads.append(read)

    @property
    def flights(self) -> int:
        """The flights that were read, each counted once."""
        return sum(reads[-1].end for reads in self._reads.values())

    @property
    def carriers(self) -> Counter[str]:
        """The flights of each carrier: the group's result."""
        total: Counter[str] = Counter()
        for reads in self._reads.values():
            for read in reads:
                total += read.carriers
        return total


class Group:
    """``with Group(bootstrap, errors) as group``: runs both members. One pipe keeps their reports in order."""

    def __init__(self, bootstrap: str, errors: Path) -> None:
        self.books = Books()
        self._bootstrap = bootstrap
        self._errors = errors
        self._members: dict[str, subprocess.Popen[bytes]] = {}
        self._pipe = -1
        self._rest = b""

    def __enter__(self) -> Self:
        self._pipe, write = os.pipe()
        with self._errors.open("wb") as errors:
            for name in ("one", "two"):
                self._members[name] = subprocess.Popen(
                    [sys.executable, "-m", "demo.member", name, self._bootstrap, GROUP],
                    stdout=write,
                    stderr=errors,
                    process_group=0,
                )
        os.close(write)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._members.values():
            process.kill()
            process.wait()
        os.close(self._pipe)

    def wait(self, done: Callable[[Books], bool], what: str) -> None:
        """Wait until ``done``. Raises RuntimeError after a minute without a report."""
        while not done(self.books):
            if not select.select([self._pipe], [], [], _PATIENCE)[0]:
                raise RuntimeError(f"the group has not come to {what}; {self._errors} may say why")
            self._take()

    def _take(self) -> bool:
        data = os.read(self._pipe, 1 << 16)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self.books.enter(line)
        return bool(data)

    def kill(self, name: str) -> None:
        """Kill a member with -9: it neither commits nor leaves the group."""
        self._members[name].kill()
        self._members[name].wait()

    def leave(self) -> float:
        """Let the others leave; the seconds that this took."""
        start = time.perf_counter()
        for process in self._members.values():
            process.send_signal(signal.SIGTERM)
        for process in self._members.values():
            process.wait(_PATIENCE)
        while self._take():
            continue
        return time.perf_counter() - start


def balanced(books: Books) -> bool:
    """Whether each member has half of the partitions."""
    return sorted(books.assigned) == ["one", "two"] and all(len(one) == 2 for one in books.assigned.values())


def describe(numbers: dict[int, int]) -> str:
    """Partitions and offsets as text."""
    return ", ".join(f"{partition} at {offset:,}" for partition, offset in sorted(numbers.items()))
