"""The operations of clients and their outcomes, one operation a line: the input of the checks.

The shape is that of Jepsen's Kafka workload (``jepsen/tests/kafka.clj``). A key is a partition. Values are unique in
their key. An operation is ``ok`` (done), ``fail`` (certainly not done) or ``info`` (nobody knows: it was cut off).
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

Key = str
"""A partition: ``topic-0``."""
Value = str
Outcome = Literal["ok", "fail", "info"]
OK: Final = "ok"
FAIL: Final = "fail"
INFO: Final = "info"


class Send(NamedTuple):
    """One record that was sent, and its offset if the client got it."""

    key: Key
    value: Value
    offset: int | None = None


class Read(NamedTuple):
    """One record that was read."""

    key: Key
    offset: int
    value: Value


Step = Send | Read


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One call of one client: one send or poll, or a transaction of several.

    ``began`` and ``ended`` are seconds of one clock. ``rebalanced``: keys that were taken from or given to the consumer
    since its last operation. ``fresh``: the client has read nothing before, or has sought. ``group``: that for which a
    transaction commits the offsets of its reads.
    """

    client: str
    steps: tuple[Step, ...]
    outcome: Outcome
    began: float = 0.0
    ended: float = 0.0
    is_final: bool = False
    is_transaction: bool = False
    rebalanced: frozenset[Key] = frozenset()
    is_fresh: bool = False
    group: str = ""

    @property
    def sends(self) -> Iterator[Send]:
        return (step for step in self.steps if isinstance(step, Send))

    @property
    def reads(self) -> Iterator[Read]:
        return (step for step in self.steps if isinstance(step, Read))


@dataclass(slots=True)
class History:
    """All operations, in the order in which they ended. Clients on several threads may add to it."""

    ops: list[Op] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, op: Op) -> None:
        with self._lock:
            self.ops.append(op)

    def __len__(self) -> int:
        return len(self.ops)

    def write(self, path: Path) -> None:
        """One JSON object a line, so that a run with findings can be examined again."""
        with path.open("w") as file:
            for op in self.ops:
                steps = [[type(step).__name__, *step] for step in op.steps]
                fields = {name: getattr(op, name) for name in Op.__slots__ if name not in ("steps", "rebalanced")}
                file.write(json.dumps({**fields, "steps": steps, "rebalanced": sorted(op.rebalanced)}) + "\n")

    @classmethod
    def load(cls, path: Path) -> History:
        return cls([_op(json.loads(line)) for line in path.read_text().splitlines()])


def _op(told: dict[str, Any]) -> Op:
    kinds: Mapping[str, type[Send] | type[Read]] = {"Send": Send, "Read": Read}
    steps: Iterable[Sequence[Any]] = told.pop("steps")
    return Op(
        **{**told, "rebalanced": frozenset(told["rebalanced"])},
        steps=tuple(kinds[kind](*fields) for kind, *fields in steps),
    )


class Recorder:
    """One client's part of a history: what it calls is put down with times and outcome."""

    def __init__(self, history: History, client: str) -> None:
        self.client = client
        self._history = history
        self._numbers = itertools.count()

    def value(self) -> Value:
        """A value that no other client sends."""
        return f"{self.client}:{next(self._numbers)}"

    def now(self) -> float:
        return time.monotonic()

    def sent(self, began: float, outcome: Outcome, sends: Sequence[Send]) -> None:
        self._history.add(Op(client=self.client, steps=tuple(sends), outcome=outcome, began=began, ended=self.now()))

    def polled(
        self,
        began: float,
        reads: Sequence[Read],
        *,
        rebalanced: Iterable[Key] = (),
        is_fresh: bool = False,
        is_final: bool = False,
    ) -> None:
        self._history.add(
            Op(
                client=self.client,
                steps=tuple(reads),
                outcome=OK,
                began=began,
                ended=self.now(),
                rebalanced=frozenset(rebalanced),
                is_fresh=is_fresh,
                is_final=is_final,
            )
        )
