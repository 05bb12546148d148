"""A running client program: give it jobs, read its messages, stall it, kill it."""

from __future__ import annotations

import base64
import json
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from tests.clients.versions import CLIENTS, OTHERS, Client, command

SECONDS: Final = 120.0
_ROOT: Final = Path(__file__).parents[2]


class Told(NamedTuple):
    """A record as a client gave it back."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class ClientProcess:
    """A program of `tests.clients`, which does jobs and says in lines of JSON what happens.

    Leave it with `end`, or a ``with``; it is killed if it has not ended by itself. ``seen`` has what it said, as far as
    it was waited for.
    """

    def __init__(self, name: str, bootstrap: str, *, locked_only: bool = False) -> None:
        """``locked_only``: with the environment's packages alone, so that nothing is downloaded."""
        self.name = name
        kind = (CLIENTS | OTHERS)[name]
        self.kind: Client = kind._replace(pins=()) if locked_only else kind
        arguments, environment = command(self.kind, bootstrap)
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

    # Jobs

    def begin(self, do: str, **job: object) -> None:
        """Start a job without waiting for its end."""
        self.tell(json.dumps({"do": do, **job}))

    def run(self, do: str, **job: object) -> list[list[Any]]:
        """A job, to its end; what was said of it."""
        self.begin(do, **job)
        return self.finish()

    def finish(self, word: str | None = None) -> list[list[Any]]:
        """The end of the job that runs, which may need a word; all that was not waited for before."""
        if word is not None:
            self.tell(word)
        before = len(self.seen)
        self.until(lambda one: one.seen[-1:] == [["done"]] and len(one.seen) > before)
        return [what for what in self.seen[before:-1] if what[0] != "client"]

    def admin(self, op: str, **arguments: object) -> Any:
        """The result of an operation; ``None`` if the client lacks it. Raises `ClientError` with the client's error
        name."""
        (said,) = self.run("admin", op=op, **arguments)
        if said[0] == "cannot":
            assert op in self.kind.cannot, f"{self.name} was to be able to {op}"
            return None
        if said[0] == "error":
            raise ClientError(said[1], said[2])
        return said[1]

    def create(self, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        """A topic that can be used: Kafka tells of one before it has heard of it itself."""
        self.admin("create", topic=topic, partitions=partitions, config=config or {})
        deadline = time.monotonic() + SECONDS
        while self._unknown(topic):
            assert time.monotonic() < deadline, f"{topic} was created, and is not there"

    def _unknown(self, topic: str) -> bool:
        try:
            self.admin("partitions", topic=topic)
        except ClientError:
            return True
        return False

    # What it says

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
        """Wait up to ``seconds`` for one message, and keep it if it comes."""
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


class ClientError(Exception):
    """An error of a client: its own name, and what it said."""


def encoded(
    partition: int,
    key: bytes | None,
    value: bytes | None,
    timestamp: int | None = None,
    headers: tuple[tuple[str, bytes | None], ...] = (),
) -> list[Any]:
    """A record for a ``produce``."""
    return [partition, _text(key), _text(value), timestamp, [[name, _text(content)] for name, content in headers]]


def told(said: list[list[Any]]) -> list[Told]:
    """The records that were said; a cut or an error among them is none of them."""
    return [
        Told(partition, offset, at, _data(key), _data(value), tuple((name, _data(one)) for name, one in headers))
        for _, partition, offset, at, key, value, headers in (what for what in said if what[0] == "record")
    ]


def _text(found: bytes | None) -> str | None:
    return None if found is None else base64.b64encode(found).decode()


def _data(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def wait_for(all_: Sequence[ClientProcess], is_over: Callable[[], bool], what: str) -> None:
    """Hear them all, until what they have said together is enough."""
    deadline = time.monotonic() + SECONDS
    while not is_over():
        assert time.monotonic() < deadline, f"waited for {what}; they said {[one.seen[-8:] for one in all_]}"
        for one in all_:
            one.hear(0.02)
