"""`seglog verify` of one segment beside `DumpLogSegments --deep-iteration`, which checks CRCs and decodes records too.

A start is the same command on a file of some KB; ours with the compiled loops, which so small a file would not load.

    python -m bench verify                         256 MB
    SEGLOG_BENCH_MB=1024 python -m bench verify
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from bench import kafka
from bench.commands import beside, python, seglog, show, without
from bench.segments import Recipe, make, megabytes, rounds
from seglog.records.compression import Codec

_RECIPES: Final = (
    Recipe(500),
    Recipe(100),
    Recipe(1000),
    Recipe(100, Codec.ZSTD),
    Recipe(1000, Codec.ZSTD),
)
_OUR_START: Final = (
    "import sys, seglog.cli.main, seglog.cli.offline.verify; from seglog.storage.offline.verify import verify; "
    "verify(sys.argv[1:], fast=True)"
)
_STARTS: Final = 5


def main() -> None:
    print(f"verify beside DumpLogSegments --deep-iteration, medians of {rounds()} rounds, {kafka.describe(kafka.TOOL)}")
    with tempfile.TemporaryDirectory(prefix="seglog-bench-") as name:
        root = Path(name)
        small = make(root / "small", Recipe(500), 1 << 16).log
        starts = beside(python(_OUR_START, small), kafka.dump_command(small, "--deep-iteration"), _STARTS)
        show("starts", starts)
        for recipe in _RECIPES:
            made = make(root / "large", recipe, megabytes() << 20)
            print(f"{recipe}: {made.size / 1e6:.0f} MB, {made.records} records")
            whole = beside(seglog("verify", made.log), kafka.dump_command(made.log, "--deep-iteration"), rounds())
            show("whole command", whole, made.size)
            show("without the starts", without(whole, starts), made.size)


if __name__ == "__main__":
    main()
