"""A broker finishes the transactions that a killed one has left in each state. Beside Kafka: `tests/interop`."""

from __future__ import annotations

from pathlib import Path

from tests.broker.broker_thread import RunningNode, Wire
from tests.kit import transaction_states as states
from tests.kit.broker_process import BrokerProcess


def test_the_next_broker_finishes_what_is_decided_and_what_has_timed_out(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with RunningNode(path, {**states.ONE_PARTITION, **states.EXPIRING}) as running, Wire(running.bootstrap) as wire:
        expired = states.leave_expired(wire)
    with BrokerProcess(path, {**states.ONE_PARTITION, **states.LEAVING}) as killed, Wire(killed.bootstrap) as wire:
        left = states.leave_all(wire)
        killed.kill()
    states.rewind(path, left)
    with RunningNode(path, {**states.ONE_PARTITION, **states.FINISHING}) as running, Wire(running.bootstrap) as wire:
        states.check_finished(wire, left, expired)
