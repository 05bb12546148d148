"""Log directories whose disk has failed, is full, or has room again: noted in any thread, taken on the event loop."""

from __future__ import annotations

import asyncio

from seglog.storage.directory.log_dir import LogDir


class DirectoryEvents:
    """`note` a directory whose health has changed; `take` returns the directories in that order."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._noted: asyncio.Queue[LogDir] = asyncio.Queue()

    def note(self, directory: LogDir) -> None:
        """Called by the thread that notices."""
        self._loop.call_soon_threadsafe(self._noted.put_nowait, directory)

    async def take(self) -> LogDir:
        """Wait for the next directory. What became of it is in its `LogDir.health`."""
        return await self._noted.get()
