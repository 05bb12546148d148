"""A process that is heard: each line that it prints is a JSON list, the first of which is a word."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

__all__ = ["SECONDS", "HeardProcess"]

SECONDS = 120.0
_ROOT = Path(__file__).parents[2]


class HeardProcess:
    """Leave it with `end`, or a ``with``; it is killed if it has not ended by itself.

    ``seen`` has what it said, as far as it was waited for.
    """

    def __init__(self, name: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._process = subprocess.Popen(
            arguments,
            cwd=_ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.seen: list[list[Any]] = []
        self._said: queue.Queue[str] = queue.Queue()
        self._complaints: list[str] = []
        self._readers = [threading.Thread(target=self._read), threading.Thread(target=self._read_complaints)]
        for reader in self._readers:
            reader.start()
        self._is_over = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.put(line)
        self._said.put("")

    def _read_complaints(self) -> None:
        assert self._process.stderr is not None
        self._complaints.extend(self._process.stderr)

    def tell(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()

    def until(self, is_over: Callable[[Self], bool], what: str = "") -> None:
        """Wait for what it says."""
        deadline = time.monotonic() + SECONDS
        while not is_over(self):
            try:
                line = self._said.get(timeout=max(deadline - time.monotonic(), 0))
            except queue.Empty:
                line = ""
            if not line:
                self._said.put("")  # for `finish_reading`
                raise AssertionError(
                    f"{self.name}, waited for {what or 'its end'}, said {self.seen[-20:]}, and no more for"
                    f" {SECONDS} s, or for ever: {self.complaints}"
                )
            self.seen.append(json.loads(line))

    def hear(self, seconds: float) -> None:
        """What it says meanwhile, if it does."""
        try:
            line = self._said.get(timeout=seconds)
        except queue.Empty:
            return
        if not line:
            self._said.put("")
            raise AssertionError(f"{self.name} has ended after {self.seen[-20:]}: {self.complaints}")
        self.seen.append(json.loads(line))

    @property
    def complaints(self) -> str:
        """The end of its standard error."""
        return "".join(self._complaints)[-3000:]

    # A member

    @property
    def assigned(self) -> list[int]:
        return next((list(what[1]) for what in reversed(self.seen) if what[0] == "assigned"), [])

    def offsets(self, what: str, partition: int) -> list[int]:
        """Of all that was ``read`` or ``committed`` there."""
        return [said[2] for said in self.seen if said[0] == what and said[1] == partition]

    def has_committed(self, offset: int) -> bool:
        """So far in all that it is assigned."""
        return all(self.offsets("committed", partition)[-1:] == [offset] for partition in self.assigned)

    # Its end

    def stall(self) -> None:
        """It does nothing any more, and its connections stay."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL; the rest of what it said is read."""
        self._process.kill()
        self.finish_reading()

    def end(self) -> None:
        """Nothing is left of it."""
        if not self._is_over:
            self.kill()

    def finish_reading(self) -> None:
        """It ends by itself, or was killed: wait for that, and read the rest of what it said."""
        self._is_over = True
        self._process.wait(SECONDS)
        for reader in self._readers:
            reader.join()
        while line := self._said.get():
            self.seen.append(json.loads(line))
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()
