"""A scan's memory does not grow with its threads: what it takes beyond that of a small scan is bounded.

`docs/scan.md` has the figures of long topics; here each thread meets a batch that is large by itself.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from random import Random

import pytest

import seglog
from seglog.testing import Broker

LARGE = 24 << 20
PARTITIONS = 8
_PROGRAM = """
import sys, seglog
from pathlib import Path

def status(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))

where, count = sys.argv[1], 0
assert seglog.scan(where, topics="small", threads=1).read_all().num_rows == 1  # compiles, imports, connects
before = status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # the peak begins again
for batch in seglog.scan(where, topics="large", threads=8, progress=False):
    count += batch.num_rows
print(count, status("VmHWM") - before)
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp("large")
    with seglog.open(directory) as logs:
        config = {"max.message.bytes": str(2 * LARGE)}
        logs.create_topic("small")
        logs.log("small").append_records([seglog.NewRecord(b"v")])
        logs.create_topic("large", PARTITIONS, config=config)
        value = Random(7).randbytes(LARGE)
        for partition in range(PARTITIONS):
            for _ in range(2):
                logs.log("large", partition).append_records([seglog.NewRecord(value)])
    with Broker(data_dir=directory) as broker:
        yield broker


@pytest.mark.parametrize("reads", ["brokers", "files"])
def test_threads_do_not_each_hold_a_large_batch(broker: Broker, reads: str) -> None:
    where = broker.bootstrap if reads == "brokers" else broker.data_dir
    done = subprocess.run([sys.executable, "-c", _PROGRAM, where], capture_output=True, text=True, check=True)
    count, growth = map(int, done.stdout.split())
    assert count == 2 * PARTITIONS
    # 250 MiB; without turns 420 MiB of files and 770 MiB of brokers. Heaps of the allocator vary by some tens.
    assert growth < 380 << 20, f"{growth >> 20} MiB"
