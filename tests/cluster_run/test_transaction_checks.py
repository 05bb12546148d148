"""The checker of transactions: silent about a good history, and each anomaly, planted by hand, is found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.cluster_run.history import FAIL, INFO, OK, History, Op, Read, Send
from tests.cluster_run.transaction_checks import check_transactions

# in-0: a(0) b(1); out-0: A(0) B(2) x(4); out-1: A2(0) x2(2). Markers are at the offsets between.
GOOD = (
    Op(client="w", steps=(Send("in-0", "a", 0), Send("in-0", "b", 1)), outcome=OK, began=1, is_transaction=True),
    Op(
        client="g1",
        steps=(Read("in-0", 0, "a"), Send("out-0", "A", 0), Send("out-1", "A2", 0)),
        outcome=OK,
        began=2,
        is_transaction=True,
        group="g",
    ),
    Op(
        client="g2",
        steps=(Read("in-0", 1, "b"), Send("out-0", "B", 2)),
        outcome=INFO,
        began=3,
        is_transaction=True,
        is_fresh=True,
        group="g",
    ),
    Op(client="w", steps=(Send("out-0", "no", 3), Send("out-1", "no2", 1)), outcome=FAIL, began=4, is_transaction=True),
    Op(
        client="w",
        steps=(Read("out-1", 0, "A2"), Send("out-0", "x", 4), Send("out-1", "x2", 2)),
        outcome=OK,
        began=5,
        is_transaction=True,
    ),
    Op(
        client="final",
        steps=(
            *(Read("in-0", 0, "a"), Read("in-0", 1, "b")),
            *(Read("out-0", 0, "A"), Read("out-0", 2, "B"), Read("out-0", 4, "x")),
            *(Read("out-1", 0, "A2"), Read("out-1", 2, "x2")),
        ),
        outcome=OK,
        began=9,
        is_final=True,
    ),
)
COMMITTED = {"g": {"in-0": 2}}


def final_with(*more: Read, without: str = "") -> dict[str, Any]:
    steps = [step for step in GOOD[-1].steps if not (isinstance(step, Read) and step.value == without)]
    return {"steps": tuple(sorted((*steps, *more)))}


def check(ops: list[Op], offset: int = 2) -> set[str]:
    return check_transactions(History(ops), {"g": {"in-0": offset}}).kinds()


def test_the_history_that_is_broken_below_is_good() -> None:
    found = check_transactions(History(list(GOOD)), COMMITTED)
    assert found.report.anomalies == []
    assert (found.committed, found.aborted, found.processed, found.g0) == (4, 1, 2, 0)


@pytest.mark.parametrize(
    ("kind", "at", "changes"),
    [
        ("G1a", 5, final_with(Read("out-0", 3, "no"))),
        ("G1a", 4, {"steps": (Read("out-1", 1, "no2"), Send("out-0", "x", 4), Send("out-1", "x2", 2))}),
        ("G1c", 1, {"steps": (Read("in-0", 0, "a"), Read("out-0", 4, "x"), *tuple(GOOD[1].sends))}),
        ("precommitted-read", 4, {"steps": (*GOOD[4].steps, Read("out-0", 4, "x"))}),
        ("inconsistent-offsets", 4, {"steps": (Read("out-1", 0, "y"), *tuple(GOOD[4].sends))}),
        ("unseen", 5, final_with(without="A2")),
        ("lost-write", 5, final_with(without="A")),
        ("duplicate", 5, final_with(Read("out-1", 4, "x2"))),
        ("torn", 2, {"steps": (*GOOD[2].steps, Send("out-1", "B2"))}),
        ("processed-twice", 2, {"steps": (Read("in-0", 0, "a"), *GOOD[2].steps)}),
        ("not-processed", 2, {"group": ""}),
    ],
)
def test_each_anomaly_is_found(kind: str, at: int, changes: dict[str, Any]) -> None:
    assert kind in check([replace(op, **changes) if number == at else op for number, op in enumerate(GOOD)])


def test_offsets_that_are_not_committed_with_their_transaction_are_found() -> None:
    assert check(list(GOOD), offset=1) == {"lost-offsets"}
    assert check(list(GOOD), offset=2) == set()


def test_offsets_of_an_aborted_transaction_are_found() -> None:
    aborted = [*GOOD[:2], replace(GOOD[2], outcome=FAIL), *GOOD[3:5], replace(GOOD[5], **final_with(without="B"))]
    assert check(aborted, offset=1) == set()
    assert check(aborted, offset=2) == {"not-processed"}


def test_a_transaction_of_which_nothing_is_known_may_be_absent() -> None:
    absent = [*GOOD[:2], replace(GOOD[2], steps=(Read("in-0", 1, "b"), Send("out-0", "B", 2))), *GOOD[3:5]]
    absent.append(replace(GOOD[5], **final_with(without="B")))
    assert check(absent, offset=1) == set()


def test_cycles_of_writes_are_counted_and_no_anomaly() -> None:
    ops = [
        Op(client="a", steps=(Send("t-0", "a", 0), Send("t-1", "a", 1)), outcome=OK, is_transaction=True),
        Op(client="b", steps=(Send("t-1", "b", 0), Send("t-0", "b", 1)), outcome=OK, is_transaction=True),
        Op(
            client="final",
            steps=(Read("t-0", 0, "a"), Read("t-0", 1, "b"), Read("t-1", 0, "b"), Read("t-1", 1, "a")),
            outcome=OK,
            is_final=True,
        ),
    ]
    found = check_transactions(History(ops))
    assert found.report.anomalies == []
    assert (found.g0, found.ww_cycles) == (1, 1)


def test_a_cycle_of_a_write_and_a_read_is_counted_and_no_anomaly() -> None:
    ops = [
        Op(client="a", steps=(Send("t-0", "a", 0), Read("t-1", 0, "b")), outcome=OK, is_transaction=True),
        Op(client="b", steps=(Send("t-1", "b", 0), Send("t-0", "b", 1)), outcome=OK, is_transaction=True),
        Op(
            client="final",
            steps=(Read("t-0", 0, "a"), Read("t-0", 1, "b"), Read("t-1", 0, "b")),
            outcome=OK,
            is_final=True,
        ),
    ]
    found = check_transactions(History(ops))
    assert found.report.anomalies == []
    assert (found.g0, found.ww_cycles) == (0, 1)
