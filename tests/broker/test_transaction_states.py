"""A broker finishes the transactions that a killed one has left in each state. Beside Kafka: `tests/interop`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from seglog.broker.ground import BrokerGround
from seglog.core.clock import SystemClock
from seglog.faults.movable_clock import MovableClock
from tests import golden
from tests.broker.broker_thread import RunningNode, Wire
from tests.kit import transaction_states as states
from tests.kit.broker_process import BrokerProcess
from tests.kit.transaction_states import LeftTransaction


def test_the_next_broker_finishes_what_a_killed_one_has_left(tmp_path: Path) -> None:
    path = tmp_path / "log"
    brokers = [BrokerProcess(path, {**states.ONE_PARTITION, **more}) for more in (states.EXPIRING, states.LEAVING)]
    left, expired = states.leave(brokers, path)
    _check(path, left, expired)


def test_a_broker_finishes_what_kafka_has_left(tmp_path: Path) -> None:
    root = golden.unpack_transactions(tmp_path)
    path = golden.log_dir(root)
    # By now all of them would have timed out.
    clock = MovableClock((states.written_at_ms(path) - SystemClock().now_ms()) / 1000)
    _check(path, *golden.left_transactions(root), BrokerGround(clock=clock))


def _check(path: Path, left: Sequence[LeftTransaction], expired: int, ground: BrokerGround | None = None) -> None:
    settings = {**states.ONE_PARTITION, **states.FINISHING}
    with RunningNode(path, settings, ground=ground) as running, Wire(running.bootstrap) as wire:
        states.check_finished(wire, left)
        states.check_new_ids(wire, left, expired)
