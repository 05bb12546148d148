"""Brokers as processes of this machine: started, heard, ended in order. None is started again."""

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
"""For a clean end, with its leaders moved away; what takes longer is killed."""
_START_SECONDS: Final = 120.0
_LINE: Final = 1 << 20


class ChildError(SeglogError):
    """A broker that we have started did not become ready."""


class Child:
    """One `seglog serve`. ``last`` is the last line that it had to say on standard error, which is passed on."""

    def __init__(self, node_id: int, process: asyncio.subprocess.Process) -> None:
        self.node_id = node_id
        self.process = process
        self.last = ""
        self.ready: dict[str, Any] = {}
        self._listening = asyncio.ensure_future(self._listen())

    @classmethod
    async def start(cls, node_id: int, arguments: Sequence[str]) -> Child:
        """In a process group of its own: Ctrl-C on a terminal is for us, who end the brokers one after the other."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "seglog", "serve", "--json", "--until-eof", *arguments),
            stdin=asyncio.subprocess.PIPE,  # ends when we do, however that is: no broker stays alone
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            process_group=0,
            limit=_LINE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        return cls(node_id, process)

    async def wait_ready(self) -> None:
        """Until it says so. `ChildError` with its own words."""
        assert self.process.stdout is not None
        try:
            line = await asyncio.wait_for(self.process.stdout.readline(), _START_SECONDS)
        except TimeoutError:
            raise ChildError(f"broker {self.node_id} was not ready within {_START_SECONDS:.0f} s") from None
        if not line:
            raise ChildError(await self.ended())
        self.ready = json.loads(line)

    async def ended(self) -> str:
        """Wait for its end; in words, how and why."""
        code = await self.process.wait()
        await self._listening
        if code < 0:  # nobody had the time to say why
            return f"broker {self.node_id} was ended by {_signal_name(-code)}"
        return f"broker {self.node_id} has ended with {code}{f': {self.last}' if self.last else ''}"

    async def stop(self) -> bool:
        """Ask it to end, and wait; False if it had to be killed."""
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
        except ValueError:  # longer than the limit: what is left of it comes as the next ones
            continue
        if not line:
            return
        yield line.decode(errors="replace").rstrip()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


async def start_all(nodes: Sequence[tuple[int, Sequence[str]]]) -> list[Child]:
    """All of them at once; ready when this returns. One that is not ready ends the others: `ChildError`."""
    children: list[Child] = []
    try:
        for node_id, arguments in nodes:
            children.append(await Child.start(node_id, arguments))
        await asyncio.gather(*(child.wait_ready() for child in children))
    except BaseException:
        await stop_all(children)
        raise
    return children


async def watch(children: Sequence[Child], stop: asyncio.Event, died: Callable[[Child, str], None]) -> None:
    """Until ``stop`` is set, or none is left; ``died`` is told of each that ends by itself."""
    stopping = asyncio.ensure_future(stop.wait())
    endings: dict[asyncio.Future[Any], Child] = {asyncio.ensure_future(child.ended()): child for child in children}
    waiting: set[asyncio.Future[Any]] = {stopping, *endings}
    while not stopping.done() and len(waiting) > 1:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for one in done - {stopping}:
            died(endings[one], one.result())
    for one in waiting:
        one.cancel()


async def stop_all(children: Sequence[Child]) -> list[int]:
    """One after the other, so that each can give its leaders to those that are left; who did not end cleanly."""
    return [child.node_id for child in children if not await child.stop()]
