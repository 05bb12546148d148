"""Brokers as child processes: started, watched and stopped in order. None is restarted."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

from seglog.cli.output import warn
from seglog.core.errors import SeglogError

STOP_SECONDS: Final = 60.0
"""For a clean stop, in which a broker moves its leaders away. After that it is killed."""
_START_SECONDS: Final = 120.0
_QUIET_SECONDS: Final = 5.0
_LINE: Final = 1 << 20


class ChildError(SeglogError):
    """A child broker did not become ready."""


class ChildBroker:
    """A `seglog serve` process. Its stderr is forwarded; ``last`` is the last line of it."""

    def __init__(self, node_id: int, process: asyncio.subprocess.Process) -> None:
        self.node_id = node_id
        self.process = process
        self.last = ""
        self.ready: dict[str, Any] = {}
        self._listening = asyncio.ensure_future(self._listen())

    @classmethod
    async def start(cls, node_id: int, arguments: Sequence[str]) -> ChildBroker:
        """Start a broker in its own process group: Ctrl-C must reach only the parent, which stops brokers in turn."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "seglog", "serve", "--json", "--until-eof", *arguments),
            stdin=asyncio.subprocess.PIPE,  # closes when the parent ends, for any reason, and stops the broker
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            process_group=0,
            limit=_LINE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        return cls(node_id, process)

    async def wait_ready(self) -> None:
        """Wait until the broker is ready. Raises `ChildError` with the broker's own message."""
        assert self.process.stdout is not None
        reading = asyncio.ensure_future(self.process.stdout.readline())
        try:
            for turn in range(1, round(_START_SECONDS / _QUIET_SECONDS) + 1):
                if (await asyncio.wait({reading}, timeout=_QUIET_SECONDS))[0]:
                    break
                warn(f"waiting for broker {self.node_id}, which has been starting for {turn * _QUIET_SECONDS:.0f} s")
            else:
                raise ChildError(f"broker {self.node_id} was not ready within {_START_SECONDS:.0f} s")
            line = await reading
        finally:
            reading.cancel()
        if not line:
            raise ChildError(await self.ended())
        self.ready = json.loads(line)

    async def ended(self) -> str:
        """Wait for the end of the process; returns its reason as text."""
        code = await self.process.wait()
        await self._listening
        if code < 0:  # killed by a signal, so without a message
            return f"broker {self.node_id} was killed by {_signal_name(-code)}"
        return f"broker {self.node_id} has ended with exit code {code}{f': {self.last}' if self.last else ''}"

    async def stop(self) -> bool:
        """Stop the broker and wait; False if it did not stop cleanly."""
        if self.process.returncode is not None:
            return True
        self.process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self.process.wait(), STOP_SECONDS)
        except TimeoutError:
            self.kill()
            await self.process.wait()
            return False
        finally:
            await self._listening
        return self.process.returncode == 0

    def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()

    async def _listen(self) -> None:
        async for line in _lines(self.process.stderr):
            self.last = line.removeprefix("seglog: ")
            warn(f"[{self.node_id}] {line}")


async def _lines(stream: asyncio.StreamReader | None) -> AsyncIterator[str]:
    assert stream is not None
    while True:
        try:
            line = await stream.readline()
        except ValueError:  # a line above the limit: its rest follows as further lines
            continue
        if not line:
            return
        yield line.decode(errors="replace").rstrip()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


async def start_all(nodes: Sequence[tuple[int, Sequence[str]]]) -> list[ChildBroker]:
    """Start all brokers and wait until they are ready. If one fails, stop the others and raise `ChildError`."""
    children: list[ChildBroker] = []
    try:
        for node_id, arguments in nodes:
            children.append(await ChildBroker.start(node_id, arguments))
        await asyncio.gather(*(child.wait_ready() for child in children))
    except BaseException:
        await stop_all(children)
        raise
    return children


async def watch(children: Sequence[ChildBroker], stop: asyncio.Event, died: Callable[[ChildBroker, str], None]) -> None:
    """Wait until ``stop`` is set or all have ended. Call ``died`` for each broker that ends by itself."""
    stopping = asyncio.ensure_future(stop.wait())
    endings: dict[asyncio.Future[Any], ChildBroker] = {
        asyncio.ensure_future(child.ended()): child for child in children
    }
    waiting: set[asyncio.Future[Any]] = {stopping, *endings}
    while not stopping.done() and len(waiting) > 1:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for one in done - {stopping}:
            died(endings[one], one.result())
    for one in waiting:
        one.cancel()


async def stop_all(children: Sequence[ChildBroker]) -> list[int]:
    """Stop brokers one after the other, so that each can hand its leaders over. Returns those that failed to."""
    return [child.node_id for child in children if not await child.stop()]
