"""Other people's clients under a few of the forty scripts of faults, and the table of all in the guide."""

from __future__ import annotations

import json

import pytest

from seglog.testing import Broker
from tests.clients.fault_cases import CASES
from tests.clients.fault_run import FAULT_CLIENTS, MARKS, PAGE, PATH, table, verdict
from tests.clients.process import ClientProcess

_FEW = [
    (number, case)
    for number, case in enumerate(CASES)
    if case.name
    in {
        "Produce: NOT_LEADER_OR_FOLLOWER",
        "Produce: an answer lost",
        "Produce: an answer cut in its header",
        "Fetch: an answer cut in its records",
    }
]


@pytest.mark.parametrize("name", ["confluent", "kafka-python"])
def test_idempotent_producers_and_consumers_keep_order_and_lose_nothing(name: str) -> None:
    with Broker() as broker, ClientProcess(name, broker.bootstrap, locked_only=True) as client:
        found = {case.name: verdict(broker, client, case, number) for number, case in _FEW}
    assert found == {case.name: "ok" for _, case in _FEW}


def test_a_lost_answer_is_found_to_give_a_duplicate() -> None:
    """The verdicts can fail: without idempotence a record is there twice."""
    (case,) = (case for _, case in _FEW if case.name == "Produce: an answer lost")
    with Broker() as broker, ClientProcess("confluent", broker.bootstrap, locked_only=True) as client:
        assert verdict(broker, client, case, 1, idempotent=False).startswith("twice")


def test_the_guide_shows_the_verdicts_that_were_found() -> None:
    results = json.loads(PATH.read_text())
    assert list(results) == list(FAULT_CLIENTS)
    assert {tuple(one["verdicts"]) for one in results.values()} == {tuple(case.name for case in CASES)}
    begin, end = MARKS
    assert PAGE.read_text().partition(begin)[2].partition(end)[0].strip() == table(results).strip()
