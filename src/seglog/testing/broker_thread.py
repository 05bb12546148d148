"""A broker in a thread of this process, with an event loop of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, TypeVar

from seglog.broker.app import Node
from seglog.core.broker_config import BrokerConfig
from seglog.core.errors import SeglogError
from seglog.faults import broker_state
from seglog.faults.broker_control import BrokerControl
from seglog.faults.fault import Fault
from seglog.faults.movable_clock import MovableClock, MovableLoop
from seglog.faults.topic_fixture import TopicFixture

T = TypeVar("T")
_PATIENCE: Final = 60
"""Seconds after which a broker that does not answer its own process is broken."""


class ThreadRunner:
    """The `Runner` that a test has by default. The thread does not keep the process from ending."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._gate: threading.Event | None = None
        self._error: SeglogError | OSError | None = None
        self._loop: asyncio.AbstractEventLoop
        self._stopping: asyncio.Event
        self._node: Node
        self._clock: MovableClock
        self._control: BrokerControl

    def start(self, settings: Mapping[str, str], topics: Mapping[str, TopicFixture], ahead: float) -> str:
        config = BrokerConfig.from_mapping(settings)
        self._clock = MovableClock(ahead)
        self._ready.clear()
        self._error = None
        self._thread = threading.Thread(target=self._run, args=[config, topics], name="seglog-broker", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._failure() is not None:
            self._join()
        return self._node.bootstrap

    def stop(self) -> None:
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._join()

    def pause(self) -> None:
        gate = self._gate = threading.Event()
        is_held = threading.Event()

        def hold() -> None:
            is_held.set()
            gate.wait()

        self._loop.call_soon_threadsafe(hold)
        is_held.wait(_PATIENCE)

    def resume(self) -> None:
        if self._gate is not None:
            self._gate.set()
            self._gate = None

    def reset(self, topics: Mapping[str, TopicFixture]) -> None:
        self._do(lambda: broker_state.reset(self._node, topics))

    def create_topic(self, name: str, fixture: TopicFixture) -> None:
        self._do(lambda: broker_state.create_topic(self._node, name, fixture))

    def inject(self, faults: Sequence[Fault], *, in_order: bool) -> list[int]:
        async def act() -> list[int]:
            return self._control.inject(faults, in_order=in_order)

        return self._do(act)

    def control(self, verb: str, argument: Mapping[str, Any]) -> Any:
        return self._do(lambda: self._control.do(verb, argument))

    def _do(self, act: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return asyncio.run_coroutine_threadsafe(act(), self._loop).result(_PATIENCE)

    def _join(self) -> None:
        assert self._thread is not None
        self._thread.join()
        self._thread = None
        if (failure := self._failure()) is not None:
            raise failure

    def _failure(self) -> SeglogError | OSError | None:
        """The error that ended the thread."""
        return self._error

    def _run(self, config: BrokerConfig, topics: Mapping[str, TopicFixture]) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: MovableLoop(self._clock)) as runner:
                runner.run(self._main(config, topics))
        except (SeglogError, OSError) as error:
            self._error = error
        finally:
            self._ready.set()

    async def _main(self, config: BrokerConfig, topics: Mapping[str, TopicFixture]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._control = BrokerControl(self._clock)
        async with Node(config, ground=self._control.ground()) as self._node:
            self._control.use(self._node)
            await broker_state.create_missing(self._node, topics)
            self._ready.set()
            await self._stopping.wait()
            self._control.close()
