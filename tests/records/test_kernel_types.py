"""In a compiled loop a signed and an unsigned 64-bit number make a float, which does not hold large integers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

_PROGRAM: Final = """
import gc, sys
from numba.core.dispatcher import Dispatcher
from seglog.worker import main
main(["warm"])
count = 0
for dispatcher in [one for one in gc.get_objects() if isinstance(one, Dispatcher)]:
    if not dispatcher.py_func.__module__.startswith("seglog."):
        continue
    for overload in dispatcher.overloads.values():
        count += 1
        floats = [name for name, kind in overload.type_annotation.typemap.items() if str(kind) == "float64"]
        named = sorted(name for name in floats if not name.startswith("$"))
        if named:
            print(dispatcher.py_func.__module__, dispatcher.py_func.__name__, *named)
print(count)
"""


@pytest.mark.everything
def test_no_integer_of_a_compiled_loop_is_a_float(tmp_path: Path) -> None:
    """Compiles all loops, which takes a minute."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=500,
    )
    (count,) = done.stdout.splitlines()
    assert int(count) > 50
