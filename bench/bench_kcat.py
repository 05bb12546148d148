"""`seglog produce` and `consume` beside kcat: CPU and time of the client processes, with one seglog broker.

Both read and write the same lines; startup is part of each figure. Set SEGLOG_BENCH_LINES to another number of lines.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Final, NamedTuple

from bench.brokers import ROUNDS, load
from bench.commands import ENVIRONMENT, seglog
from seglog.testing import Broker
from tests.clients.kcat import kcat_command

_LINES: Final = int(os.environ.get("SEGLOG_BENCH_LINES", "500000"))
_LINE: Final = "%07d GET /shop/items/4711?colour=green&size=12 HTTP/1.1 200 3412 0.012 s; a line of a log, of 100 bytes"


class _Use(NamedTuple):
    cpu: float
    seconds: float


def main() -> None:
    print(f"{_LINES:,} lines of 100 bytes, medians of {ROUNDS} rounds, in turns; {load()}")
    command, environment = kcat_command()
    with tempfile.TemporaryDirectory() as scratch, Broker({"read": 1, "written": 1}, process=True) as broker:
        lines = Path(scratch) / "lines"
        lines.write_text("".join(_LINE % number + "\n" for number in range(_LINES)))
        at = ("-b", broker.bootstrap)
        _run(seglog("produce", "read", *at), ENVIRONMENT, lines)
        work = {
            "produce": (
                (*command, *at, "-P", "-t", "written", "-X", "acks=all", "-X", "enable.idempotence=true"),
                seglog("produce", "written", *at),
            ),
            "consume": (
                (*command, *at, "-C", "-t", "read", "-e", "-q"),
                seglog("consume", "read", "-e", *at),
            ),
            "consume as JSON": (
                (*command, *at, "-C", "-t", "read", "-e", "-q", "-J"),
                seglog("consume", "read", "-e", "--json", *at),
            ),
        }
        for title, (theirs, ours) in work.items():
            uses: dict[str, list[_Use]] = {"seglog": [], "kcat": []}
            for _ in range(ROUNDS):
                uses["seglog"].append(_run(ours, ENVIRONMENT, lines))
                uses["kcat"].append(_run(theirs, environment, lines))
            cpu = {name: statistics.median(one.cpu for one in found) for name, found in uses.items()}
            seconds = {name: statistics.median(one.seconds for one in found) for name, found in uses.items()}
            ratio = cpu["seglog"] / cpu["kcat"]
            print(
                f"  {title:18} CPU {cpu['seglog']:.2f} s, kcat {cpu['kcat']:.2f} s: {ratio:.1f}x; "
                f"time {seconds['seglog']:.2f} s, kcat {seconds['kcat']:.2f} s; {load()}",
                flush=True,
            )


def _run(command: Sequence[str], environment: Mapping[str, str], lines: Path) -> _Use:
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), monotonic()
    with lines.open() as stdin:
        subprocess.run(command, stdin=stdin, stdout=subprocess.DEVNULL, env=environment, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return _Use(cpu, monotonic() - started)


if __name__ == "__main__":
    main()
