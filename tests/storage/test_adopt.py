"""Adopting staged segments: what the log has then, what is refused, how often, and how many files it takes."""

from __future__ import annotations

import random

import pytest

from seglog.storage.adopt import adopt
from seglog.testing import MemoryFs
from tests.storage.adopting import DIR, SMALL, T, batches_of, found, open_dir, stage, texts


@pytest.mark.parametrize("counts", [(5,), (200,), (3, 90, 2, 60)])
def test_parts_are_in_the_log_in_their_order(counts: tuple[int, ...]) -> None:
    fs = MemoryFs()
    directory = open_dir(fs)
    directory.create_topic("t", 1, SMALL)
    log = directory.log("t")
    log.append(batches_of(texts("before", 3))[0])
    payloads = [texts(f"task{at}", count) for at, count in enumerate(counts)]
    parts = [stage(directory, one, job="job", task=str(at), partition=T) for at, one in enumerate(payloads)]
    adopted = adopt(directory, "job", parts, "job:1", 0)
    expected = [*texts("before", 3), *(value for one in payloads for value in one)]
    assert adopted == ({T: (3, len(expected))}, False, len(expected) - 3)
    assert found(log) == expected
    assert log.recovery_point == log.log_end_offset
    assert adopt(directory, "job", parts, "job:1", 0).already
    assert found(log) == expected
    log.append(batches_of(texts("after", 3))[0])
    assert found(log) == [*expected, *texts("after", 3)]
    assert fs.listdir(f"{DIR}/t-0/.seglog/staging") == []
    directory.close()
    fs.crash(random.Random(1))
    with open_dir(fs) as again:
        assert found(again.log("t")) == [*expected, *texts("after", 3)]
