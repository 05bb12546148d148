from seglog.coordinators.consumer.member_timers import NEVER, Expired, MemberTimers, TimerChange, TimerKind, stopped


def test_timers_expire_in_time_and_once() -> None:
    timers = MemberTimers()
    timers.change([TimerChange(TimerKind.SESSION, "a", 100), TimerChange(TimerKind.REBALANCE, "a", 50, epoch=3)], 0)
    assert timers.earliest == 50
    assert timers.take_expired(49) is None
    assert timers.take_expired(50) == Expired(TimerKind.REBALANCE, "a", 3)
    assert timers.take_expired(50) is None
    assert timers.earliest == 100
    timers.change([TimerChange(TimerKind.SESSION, "a", 100)], 60)
    assert timers.take_expired(159) is None
    assert timers.take_expired(160) == Expired(TimerKind.SESSION, "a", None)
    assert timers.take_expired(160) is None
    assert timers.earliest == NEVER


def test_timer_that_runs_keeps_its_time() -> None:
    timers = MemberTimers()
    timers.change([TimerChange(TimerKind.JOIN, "a", 100, if_absent=True)], 0)
    timers.change([TimerChange(TimerKind.JOIN, "a", 100, if_absent=True)], 50)
    assert timers.take_expired(100) is not None
    timers.change([TimerChange(TimerKind.JOIN, "a", 100)], 100)
    timers.change(stopped("a"), 100)
    assert timers.take_expired(200) is None
