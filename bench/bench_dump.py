"""`seglog dump` beside DumpLogSegments: the same text, line for line, in how much of its time.

What is timed writes to /dev/null on both sides; before, both write to files, which are compared.
"""

from __future__ import annotations

import filecmp
import tempfile
from pathlib import Path
from typing import Final

from bench import kafka
from bench.commands import beside, run, seglog, show
from bench.segments import Made, Recipe, make, megabytes, rounds

_WAYS: Final = (("batches only", ()), ("--print-data-log", ("--print-data-log",)))
_SMALL: Final = 1 << 16
_SMALL_ROUNDS: Final = 7


def _compare(root: Path, made: Made, number: int) -> None:
    for title, options in _WAYS:
        ours = seglog("dump", "--files", made.log, *options)
        theirs = kafka.dump_command(made.log, *options)
        files = root / "ours.txt", root / "theirs.txt"
        run(ours, files[0])
        run(theirs, files[1])
        if not filecmp.cmp(*files, shallow=False):
            raise AssertionError(f"{made.log}: the texts differ: {files[0]}, {files[1]}")
        text = files[0].stat().st_size
        for file in files:
            file.unlink()
        show(f"{title}, {text / 1e6:.0f} MB", beside(ours, theirs, number), made.size)


def main() -> None:
    print(f"dump beside DumpLogSegments, medians of {rounds()} rounds, {kafka.describe(kafka.TOOL)}")
    with tempfile.TemporaryDirectory(prefix="seglog-bench-") as name:
        root = Path(name)
        small = make(root / "small", Recipe(500), _SMALL)
        print(f"a small file: {small.size} bytes, {small.records} records, medians of {_SMALL_ROUNDS} rounds")
        _compare(root, small, _SMALL_ROUNDS)
        for recipe in (Recipe(500), Recipe(100), Recipe(1000)):
            made = make(root / "large", recipe, megabytes() << 20)
            print(f"{recipe}: {made.size / 1e6:.0f} MB, {made.records} records; the texts are the same")
            _compare(root, made, rounds())


if __name__ == "__main__":
    main()
