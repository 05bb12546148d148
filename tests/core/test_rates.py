"""Rates and token buckets by a clock of the test; `tests/interop` compares them with Kafka's own."""

from __future__ import annotations

import pytest

from seglog.core.rates import Rate, SimpleRate, TokenBucket, Window

WINDOW = Window()


def test_a_burst_is_paid_back_at_the_quota() -> None:
    """A client that keeps to its throttle times gets its quota, also in requests of several seconds."""
    for size in (100, 5_000):
        rate, now_ms, sent = Rate(), 0, 0
        while now_ms < 600_000:
            rate.record(WINDOW, size, now_ms)
            sent += size
            now_ms += max(rate.throttle_ms(WINDOW, 1_000.0, now_ms), 1)
        assert 950 <= sent / (now_ms / 1000) <= 1_050, size


def test_a_rate_counts_whole_windows_from_its_start() -> None:
    rate = Rate()
    rate.record(WINDOW, 1_000, 0)
    assert rate.measure(WINDOW, 0) == (100.0, 10_000)
    assert rate.measure(WINDOW, 999) == (1_000 / 10.999, 10_999)
    assert rate.measure(WINDOW, 1_000) == (100.0, 10_000)
    rate.record(WINDOW, 1_000, 5_500)
    assert rate.measure(WINDOW, 5_500) == (2_000 / 10.5, 10_500)
    assert rate.measure(WINDOW, 10_999) == (2_000 / 10.999, 10_999)
    assert rate.measure(WINDOW, 11_000)[0] == pytest.approx(1_000 / 10.5)
    assert rate.measure(WINDOW, 16_500)[0] == 0


def test_values_may_be_taken_back() -> None:
    rate = Rate()
    rate.record(WINDOW, 5_000, 0)
    rate.record(WINDOW, -5_000, 0)
    assert rate.throttle_ms(WINDOW, 1.0, 0) == 0


def test_a_rate_is_fresh_once_its_window_is_over() -> None:
    rate = Rate()
    assert rate.is_fresh(WINDOW, 0)
    rate.record(WINDOW, 1, 100)
    assert not rate.is_fresh(WINDOW, 11_099)
    assert rate.is_fresh(WINDOW, 11_100)


def test_a_simple_rate_counts_from_its_first_value() -> None:
    rate = SimpleRate()
    rate.record(WINDOW, 1_000, 0)
    assert rate.measure(WINDOW, 0) == (1_000.0, 1_000)
    assert rate.measure(WINDOW, 4_000) == (250.0, 4_000)
    assert rate.throttle_ms(WINDOW, 500.0, 0) == 1_000


def test_a_bucket_takes_one_burst_of_any_size_and_then_waits() -> None:
    bucket = TokenBucket()
    assert bucket.is_full(WINDOW, 2.0, 0)
    bucket.record(WINDOW, 2.0, 22, 0)
    assert bucket.throttle_ms(WINDOW, 2.0, 0) == 0
    bucket.record(WINDOW, 2.0, 100, 0)
    assert bucket.throttle_ms(WINDOW, 2.0, 0) == 50_000
    assert bucket.throttle_ms(WINDOW, 2.0, 49_999) == 1
    assert bucket.throttle_ms(WINDOW, 2.0, 50_000) == 0
    assert not bucket.is_full(WINDOW, 2.0, 60_999)
    assert bucket.is_full(WINDOW, 2.0, 61_000)
    bucket.record(WINDOW, 2.0, 23, 10**9)
    assert bucket.throttle_ms(WINDOW, 2.0, 10**9) == 500
    assert bucket.throttle_ms(WINDOW, 1.0, 10**9) == 1_000
