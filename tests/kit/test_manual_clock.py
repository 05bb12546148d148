"""`ManualClock`."""

from __future__ import annotations

import pytest

from tests.kit.manual_clock import ManualClock


def test_manual_clock_moves_only_by_advance() -> None:
    clock = ManualClock(5)
    assert (clock.now_ms(), clock.monotonic()) == (5, 0.0)
    clock.advance(1_500)
    assert (clock.now_ms(), clock.monotonic()) == (1_505, 1.5)


def test_wall_clock_can_go_back_and_the_other_cannot() -> None:
    clock = ManualClock(5_000)
    clock.advance(1_000)
    clock.set_wall(10)
    assert (clock.now_ms(), clock.monotonic()) == (10, 1.0)
    with pytest.raises(ValueError, match="does not go back"):
        clock.advance(-1)
