"""`python -m tests.broker.stalls [API…]`: how long the largest request of each API holds up a broker's other clients.

For each request of `tests.broker.request_steps`, with as many elements as its frame may have (one million at most), the
processor time of the longest step of the event loop: for so long no other client is answered. Waits of the loop's
thread for a processor, or for Python's lock, are not in it. The lines are the rows of a table in `docs/benchmarks.md`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from seglog.core.broker_config import BrokerConfig
from seglog.protocol.apis import APIS
from seglog.protocol.message_writer import write_message
from seglog.protocol.schema import request_class
from tests.broker.broker_thread import RunningNode, Wire
from tests.broker.request_steps import REQUESTS, TOPIC

MOST: Final = 900_000
"""Elements: nested ones count, too, and a request may have a million."""
_HEADER_BYTES: Final = 100


class Longest:
    """``seconds`` of the longest step of the loop so far."""

    def __init__(self) -> None:
        self.seconds = 0.0


@contextmanager
def longest_step() -> Iterator[Longest]:
    """Measures the steps of all event loops of this process."""
    longest = Longest()
    handles: Any = asyncio.Handle
    run = handles._run

    def timed(handle: asyncio.Handle) -> None:
        begun = time.thread_time()
        run(handle)
        longest.seconds = max(longest.seconds, time.thread_time() - begun)

    handles._run = timed
    try:
        yield longest
    finally:
        handles._run = run


def largest_count(name: str) -> int:
    """As many elements as the frame limit of the API has room for."""
    key, version, few = REQUESTS[name](100)
    of = request_class(key, APIS[key].high if version is None else version)
    each = (len(write_message(of, REQUESTS[name](1100)[2])) - len(write_message(of, few))) / 1000
    limit = APIS[key].max_frame or BrokerConfig().socket_request_max_bytes
    count = min(MOST, int((limit - _HEADER_BYTES) / max(each, 1)))
    while len(write_message(of, REQUESTS[name](count)[2])) > limit - _HEADER_BYTES:
        count = count * 49 // 50
    return count


def _row(wire: Wire, name: str) -> str:
    count = largest_count(name)
    key, version, few = REQUESTS[name](1)
    wire.ask(key, version, **few)  # builds what is built once
    key, version, many = REQUESTS[name](count)
    size = len(write_message(request_class(key, APIS[key].high if version is None else version), many))
    with longest_step() as longest:
        wire.ask(key, version, **many)
    return f"| {name} | {count:,} | {size:,} | {longest.seconds * 1000:.0f} ms |"


def main(words: list[str]) -> int:
    names = [name for name in REQUESTS if not words or any(word in name for word in words)]
    print("| request | elements | bytes | longest step |\n|---|---|---|---|")
    with (
        TemporaryDirectory() as path,
        RunningNode(Path(path) / "log") as broker,
        Wire(broker.bootstrap, timeout=600) as wire,
    ):
        wire.create_topic(TOPIC)
        for name in names:
            print(_row(wire, name), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
