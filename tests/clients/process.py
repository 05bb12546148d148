"""One client, running: told what to do, heard, stalled, killed."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tests.clients.heard import SECONDS, HeardProcess
from tests.clients.versions import CLIENTS, Client, command


class Told(NamedTuple):
    """A record as a client gave it back."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class ClientProcess(HeardProcess):
    """A program of `tests.clients`, which does jobs."""

    def __init__(self, name: str, bootstrap: str) -> None:
        self.kind: Client = CLIENTS[name]
        super().__init__(name, *command(self.kind, bootstrap))

    def begin(self, do: str, **job: object) -> None:
        """A job, whose end nobody waits for yet."""
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
        """What an operation gave; ``None`` where the client has none; a `ClientError` with the client's own name."""
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
