"""`seglog perf produce|consume|e2e`: the numbers of records and bytes."""

from __future__ import annotations

import pytest

from tests.cli.run import Run

_LATENCIES = ["mean", "p50", "p95", "p99", "p999", "max"]


def test_perf_consume_reads_the_records_of_perf_produce(wire: Run, topic_name: str) -> None:
    few = ("-n", "500", "--record-size", "100")
    (sent,) = wire("perf", "produce", "-t", topic_name, "--partitions", "2", *few, "--no-idempotent", "--json").objects
    assert (sent["records"], sent["bytes"], list(sent["latencyMs"])) == (500, 50_000, _LATENCIES)
    assert sent["recordsPerSecond"] == pytest.approx(500 / sent["seconds"], rel=0.01)
    (read,) = wire("perf", "consume", "-t", topic_name, "--json").objects
    assert (read["records"], read["bytes"]) == (500, 50_000)
    (some,) = wire("perf", "consume", "-t", topic_name, "-n", "100", "--json").objects
    assert some["records"] == 100
    ends = wire("offsets", topic_name, "--json").objects
    assert sum(one["latest"] for one in ends) == 500


def test_keeps_the_requested_throughput(wire: Run, topic_name: str) -> None:
    (sent,) = wire("perf", "produce", "-t", topic_name, "-n", "50", "--throughput", "100", "--json").objects
    assert sent["records"] == 50
    assert sent["seconds"] > 0.4


def test_e2e_measures_one_record_at_a_time(wire: Run, topic_name: str) -> None:
    ran = wire("perf", "e2e", "-t", topic_name, "-n", "20")
    assert (ran.code, ran.err, len(ran.lines)) == (0, "", 2)
    assert ran.lines[0].startswith("e2e: 20 records, 2.0 KiB in ")
    assert [part.split()[0] for part in ran.lines[1].removeprefix("latency in ms: ").split(", ")] == _LATENCIES


def test_refuses_invalid_options(wire: Run) -> None:
    for arguments in (("produce", "--acks", "5"), ("produce", "--codec", "x"), ("consume", "-t", "no-such")):
        ran = wire("perf", *arguments)
        assert (ran.code, ran.text, ran.err.count("\n")) == (2, "", 1)
