"""Code that the Python programs of `tests.clients` share. It uses only the standard library."""

from __future__ import annotations

import base64
import json
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

Job = dict[str, Any]
_lock = threading.Lock()


def say(*what: object) -> None:
    """Callbacks of clients come from threads of theirs."""
    with _lock:
        print(json.dumps(what), flush=True)


class Record(NamedTuple):
    """To be sent; ``timestamp`` in ms, None for the client's clock."""

    partition: int
    key: bytes | None
    value: bytes | None
    timestamp: int | None
    headers: list[tuple[str, bytes | None]]


class Orders:
    """Orders from standard input: jobs, and words for the job that runs."""

    def __init__(self) -> None:
        self._jobs: queue.Queue[Job | None] = queue.Queue()
        self.stop = threading.Event()
        self.go = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            word = line.strip()
            if word == "stop":
                self.stop.set()
            elif word == "go":
                self.go.set()
            else:
                self._jobs.put(json.loads(word))
        self.stop.set()
        self.go.set()
        self._jobs.put(None)

    def records(self, job: Job) -> Iterator[tuple[int, Record]]:
        """The records of a ``produce``, numbered: those that are given, or ``numbers`` (first, end) of ``size`` bytes
        over ``partitions``, ``rate`` a second; no more of them after ``stop``."""
        if "records" in job:
            for number, (partition, key, value, timestamp, headers) in enumerate(job["records"]):
                pairs = [(name, data(content)) for name, content in headers]
                yield number, Record(partition, data(key), data(value), timestamp, pairs)
            return
        first, end = job["numbers"]
        started = time.monotonic()
        for number in range(first, end):
            if "rate" in job:
                self.stop.wait(max(started + (number - first) / job["rate"] - time.monotonic(), 0))
            if self.stop.is_set():
                break
            value = b"%d" % number
            yield number, Record(number % job["partitions"], None, value.ljust(job.get("size", 0)), None, [])

    def work(self, verbs: Mapping[str, Callable[[Job], None]], errors: tuple[type[Exception], ...]) -> None:
        """Do jobs until standard input ends."""
        while (job := self._jobs.get()) is not None:
            try:
                verbs[job["do"]](job)
            except errors as error:
                say("error", name_of(error), str(error)[:300])
            self.stop.clear()
            self.go.clear()
            say("done")


def name_of(error: BaseException) -> str:
    """As the client calls it: librdkafka's errors have names, the others' are classes."""
    told: Any = error.args[0] if error.args else None
    return str(told.name()) if hasattr(told, "name") else type(error).__name__


def data(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def text(found: bytes | None) -> str | None:
    return None if found is None else base64.b64encode(found).decode()


def say_record(
    partition: int, offset: int, timestamp: int, key: bytes | None, value: bytes | None, headers: Any
) -> None:
    pairs = [(name, text(content)) for name, content in headers or ()]
    say("record", partition, offset, timestamp, text(key), text(value), pairs)


class Watch:
    """Says what a member is assigned, when that has changed."""

    def __init__(self) -> None:
        self._before: list[int] | None = None

    def look(self, assignment: Any) -> None:
        now = sorted(one.partition for one in assignment)
        if now != self._before:
            say("assigned", now)
            self._before = now
