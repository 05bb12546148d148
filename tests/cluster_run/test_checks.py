"""The checker: silent about every history that a correct cluster can give, and each anomaly, planted, is found."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import case
from tests.cluster_run.checks import Promises, check, longest_pauses
from tests.cluster_run.history import FAIL, INFO, OK, History, Key, Op, Outcome, Read, Send

KEYS = ("t-0", "t-1")
OUTCOMES: list[Outcome] = [OK, INFO, FAIL]


class Model:
    """A correct cluster: one list a key, with gaps where control batches are; each client's position in each."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.history = History()
        self.logs: dict[Key, list[tuple[int, str]]] = {key: [] for key in KEYS}
        self._positions: dict[tuple[str, Key], int] = defaultdict(int)
        self._values = 0
        self._clock = 0.0

    def run(self, steps: int) -> History:
        for _ in range(steps):
            client = self.rng.choice("ab")
            if self.rng.random() < 0.5:
                self.send(f"p{client}", self.rng.choices(OUTCOMES, [8, 1, 1])[0])
            else:
                self.poll(f"c{client}")
        for key in KEYS:
            self.poll_all("final", key)
        return self.history

    def send(self, client: str, outcome: Outcome) -> None:
        sends = []
        happens = outcome == OK or (outcome == INFO and self.rng.random() < 0.5)
        for _ in range(self.rng.randint(1, 3)):
            key = self.rng.choice(KEYS)
            value, offset = f"{client}:{self._values}", None
            self._values += 1
            if happens:
                log = self.logs[key]
                at = (log[-1][0] if log else -1) + self.rng.choice([1, 1, 1, 2])
                log.append((at, value))
                offset = at if outcome == OK else None
            sends.append(Send(key, value, offset))
        self._add(Op(client=client, steps=tuple(sends), outcome=outcome, began=self._tick()))

    def poll(self, client: str) -> None:
        reads = []
        for key in KEYS:
            start = self._positions[client, key]
            found = self.logs[key][start : start + self.rng.randint(0, 4)]
            self._positions[client, key] += len(found)
            reads += [Read(key, offset, value) for offset, value in found]
        self._add(Op(client=client, steps=tuple(reads), outcome=OK, began=self._tick()))

    def poll_all(self, client: str, key: Key) -> None:
        reads = [Read(key, offset, value) for offset, value in self.logs[key]]
        self._add(Op(client=client, steps=tuple(reads), outcome=OK, began=self._tick(), is_final=True))

    def _tick(self) -> float:
        self._clock += 1
        return self._clock

    def _add(self, op: Op) -> None:
        self.history.add(replace(op, ended=op.began + 0.5))


@given(st.integers(0, 1 << 40), st.integers(0, 60))
def test_correct_histories_have_no_anomalies(seed: int, steps: int) -> None:
    case()
    assert check(Model(seed).run(steps)).anomalies == []


GOOD = (
    Op(client="p", steps=(Send("t-0", "a", 0), Send("t-0", "b", 1)), outcome=OK, began=1, ended=2),
    Op(client="p", steps=(Send("t-0", "c", 2),), outcome=OK, began=3, ended=7),
    Op(client="c", steps=(Read("t-0", 0, "a"), Read("t-0", 1, "b")), outcome=OK, began=4, ended=5),
    Op(client="c", steps=(Read("t-0", 2, "c"),), outcome=OK, began=8, ended=9),
    Op(
        client="f",
        steps=(Read("t-0", 0, "a"), Read("t-0", 1, "b"), Read("t-0", 2, "c")),
        outcome=OK,
        began=10,
        ended=11,
        is_final=True,
    ),
)


def test_the_history_that_is_broken_below_is_good() -> None:
    assert check(History(list(GOOD))).anomalies == []


@pytest.mark.parametrize(
    ("kind", "at", "changes"),
    [
        ("inconsistent-offsets", 3, {"steps": (Read("t-0", 2, "x"),)}),
        ("duplicate", 3, {"steps": (Read("t-0", 2, "c"), Read("t-0", 3, "a"))}),
        ("G1a", 1, {"outcome": FAIL}),
        ("unseen", 4, {"steps": (Read("t-0", 0, "a"), Read("t-0", 1, "b"))}),
        ("nonmonotonic-poll", 3, {"steps": (Read("t-0", 1, "b"), Read("t-0", 2, "c"))}),
        ("poll-skip", 2, {"steps": (Read("t-0", 0, "a"),)}),
        ("int-nonmonotonic-poll", 2, {"steps": (Read("t-0", 1, "b"), Read("t-0", 0, "a"))}),
        ("int-poll-skip", 4, {"steps": (Read("t-0", 0, "a"), Read("t-0", 2, "c"))}),
        ("nonmonotonic-send", 1, {"began": 0.5}),
        ("int-nonmonotonic-send", 0, {"steps": (Send("t-0", "b", 1), Send("t-0", "a", 0))}),
        (
            "precommitted-read",
            1,
            {"steps": (Send("t-0", "c", 2), Read("t-0", 2, "c")), "is_transaction": True},
        ),
    ],
)
def test_each_anomaly_is_found(kind: str, at: int, changes: dict[str, Any]) -> None:
    broken = [replace(op, **changes) if number == at else op for number, op in enumerate(GOOD)]
    assert kind in check(History(broken)).kinds()


def without(value: str, ops: tuple[Op, ...] = GOOD) -> list[Op]:
    """The history as if no consumer had read this value."""
    return [
        replace(op, steps=tuple(step for step in op.steps if not (isinstance(step, Read) and step.value == value)))
        for op in ops
    ]


def test_acknowledged_write_that_no_reader_sees_is_lost() -> None:
    report = check(History(without("b")), Promises(all_polled=False))
    assert [one.what for one in report.anomalies if one.kind == "lost-write"] == [
        "b was acknowledged at 1 and never read"
    ]
    # the last one may still be on its way
    assert check(History(without("c")), Promises(all_polled=False)).anomalies == []
    assert check(History(without("c"))).kinds() == {"unseen"}


def test_a_send_of_which_nothing_is_known_may_have_happened_or_not() -> None:
    ops = [replace(GOOD[0], outcome=INFO, steps=(Send("t-0", "a"), Send("t-0", "b"))), *GOOD[1:]]
    assert check(History(ops)).anomalies == []
    assert check(History(without("b", tuple(without("a", tuple(ops)))))).anomalies == []


def test_duplicates_and_rewinds_allowed_by_settings_are_not_anomalies() -> None:
    twice = [*GOOD[:3], replace(GOOD[3], steps=(Read("t-0", 2, "c"), Read("t-0", 3, "a"))), *GOOD[4:]]
    assert "duplicate" not in check(History(twice), Promises(is_idempotent=False)).kinds()
    back = [*GOOD[:3], replace(GOOD[3], steps=(Read("t-0", 0, "a"),)), *GOOD[4:]]
    assert check(History(back)).kinds() == {"nonmonotonic-poll"}
    assert check(History(back), Promises(is_assigned=False)).anomalies == []
    taken = [*GOOD[:3], replace(GOOD[3], steps=(Read("t-0", 0, "a"),), rebalanced=frozenset({"t-0"})), *GOOD[4:]]
    assert check(History(taken)).anomalies == []


def test_a_history_is_read_as_it_was_written(tmp_path: Path) -> None:
    history = Model(5).run(40)
    history.write(tmp_path / "history")
    assert History.load(tmp_path / "history").ops == history.ops


def test_pauses_are_between_acknowledgements() -> None:
    assert longest_pauses(History(list(GOOD))) == {"t-0": 5}
