"""A program of ours that uses a product, run until it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

__all__ = ["APPS", "running"]

APPS: Final = Path(__file__).parent / "apps"
_TAIL: Final = 3_000


@contextmanager
def running(command: Sequence[str], path: Path, environment: Mapping[str, str] | None = None) -> Iterator[None]:
    """Run it in ``path`` with its output in ``app.log``, and kill it with all its children.

    A failed test shows the end of that file."""
    log = path / "app.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **(environment or {})},
            cwd=path,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield
    except AssertionError as failed:
        failed.add_note(f"the end of {log}:\n{log.read_text(errors='replace')[-_TAIL:]}")
        raise
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
