"""Control of a broker for tests from inside: what its program, its parent process, or HTTP ask for, by JSON."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final
from uuid import UUID

from seglog.broker.app import Node
from seglog.broker.ground import BrokerGround
from seglog.core.addresses import Address
from seglog.core.fs import OsFs
from seglog.faults import broker_state
from seglog.faults.fault import Fault, FaultError, FaultReport, fault_from_json
from seglog.faults.fault_layer import FaultLayer
from seglog.faults.movable_clock import MovableClock, MovableLoop, MovableWorkers, workers_of
from seglog.faults.recording import Recorder
from seglog.faults.topic_fixture import fixture_from_json
from seglog.net.connection import FrameHandler, reset_on_close
from seglog.net.connection_quotas import ConnectionQuotas
from seglog.net.listener import Listener, ListenerSecurity

MAX_FAULTS: Final = 1000
MOST_SECONDS: Final = 100 * 365 * 86_400.0


class BrokerControl:
    """One for each start of a broker. Build the `Node` with `ground`, then call `use`. All of it is called on the
    broker's event loop."""

    def __init__(self, clock: MovableClock) -> None:
        self.layer = FaultLayer()
        self._clock = clock
        self._threads = MovableWorkers()
        self._recorder: Recorder | None = None
        self._node: Node

    def ground(self) -> BrokerGround:
        """The surroundings of a broker under control. Call it on the broker's event loop."""
        return BrokerGround(
            clock=self._clock,
            workers=workers_of(asyncio.get_running_loop()),
            make_worker=self._threads.make,
            listener=partial(FaultyListener, self.layer),
        )

    def use(self, node: Node) -> None:
        def name(topic_id: UUID) -> str | None:
            topic = node.topics.by_id.get(topic_id)
            return None if topic is None else topic.name

        self._node = node
        self.layer.use_topics(name)

    async def advance(self, seconds: float) -> None:
        """Move the clock. Returns when timers, threads and what follows from them have run."""
        if not 0 <= seconds <= MOST_SECONDS:
            raise FaultError(f"the clock cannot move by {seconds} s")
        if not self._node.is_alone:
            raise FaultError("the clock of a cluster's broker does not move: the other brokers' would not")
        loop = asyncio.get_running_loop()
        assert isinstance(loop, MovableLoop)
        await loop.move(seconds)
        await self._threads.run_due()
        await loop.move(0)

    def record(self, path: str) -> None:
        """Write what clients and the broker say from now on. OSError; `FaultError` if a recording is under way."""
        if self._recorder is not None:
            raise FaultError("a recording is under way: end it first")
        self._recorder = Recorder(OsFs(), path, self._clock)
        self.layer.observe(self._recorder)

    def stop_recording(self) -> None:
        if self._recorder is not None:
            self.layer.observe(None)
            self._recorder.close()
            self._recorder = None

    def close(self) -> None:
        """The broker stops: end its faults and its recording."""
        self.layer.clear()
        self.stop_recording()

    def inject(self, faults: Sequence[Fault], *, in_order: bool) -> list[int]:
        if len(faults) + len(self.layer.reports()) > MAX_FAULTS:
            raise FaultError(f"there may be {MAX_FAULTS} faults at a time")
        return self.layer.add(*faults, in_order=in_order)

    async def do(self, verb: str, argument: Mapping[str, Any]) -> Any:
        """Parse a JSON command. `FaultError` if it is not a valid one."""
        act = self._verbs().get(verb)
        if act is None:
            raise FaultError(f"there is no command {verb!r}")
        try:
            found = act(argument)
            return await found if isinstance(found, Awaitable) else found
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise FaultError(f"{verb}: {error!r}") from error

    def _verbs(self) -> dict[str, Callable[[Mapping[str, Any]], Any]]:
        return {
            "inject": self._inject,
            "reports": lambda _: [report_to_json(report) for report in self.layer.reports()],
            "report": self._report,
            "remove": lambda argument: self.layer.remove(int(argument["id"])),
            "clear": lambda _: self.layer.clear(),
            "advance": lambda argument: self.advance(float(argument["seconds"])),
            "clock": lambda _: {"now_ms": self._clock.now_ms(), "ahead_seconds": self._clock.ahead},
            "record": lambda argument: self.record(str(argument["path"])),
            "stop_recording": lambda _: self.stop_recording(),
            "create_topic": self._create_topic,
            "reset": self._reset,
        }

    def _inject(self, argument: Mapping[str, Any]) -> list[int]:
        faults = [fault_from_json(one) for one in argument["faults"]]
        return self.inject(faults, in_order=bool(argument.get("in_order")))

    def _report(self, argument: Mapping[str, Any]) -> dict[str, Any]:
        fault_id = int(argument["id"])
        for report in self.layer.reports():
            if report.fault_id == fault_id:
                return report_to_json(report)
        raise FaultError(f"there is no fault {fault_id}")

    async def _create_topic(self, argument: Mapping[str, Any]) -> None:
        fixture = fixture_from_json({key: value for key, value in argument.items() if key != "name"})
        await broker_state.create_topic(self._node, str(argument["name"]), fixture)

    async def _reset(self, argument: Mapping[str, Any]) -> None:
        fixtures = {str(name): fixture_from_json(one) for name, one in argument.get("topics", {}).items()}
        self.layer.clear()
        await broker_state.reset(self._node, fixtures)


def report_to_json(report: FaultReport) -> dict[str, Any]:
    fault = {"effect": report.fault.effect} if report.fault.where is not None else report.fault.to_json()
    return {
        "id": report.fault_id,
        "fault": fault,
        "seen": report.seen,
        "fired": report.fired,
        "met": [one._asdict() for one in report.met],
        "problem": report.problem,
    }


class FaultyListener(Listener):
    """Refuses connections while the layer says so: they are reset as soon as they are accepted."""

    def __init__(
        self,
        layer: FaultLayer,
        address: Address,
        handler: FrameHandler,
        quotas: ConnectionQuotas,
        *,
        security: ListenerSecurity | None = None,
    ) -> None:
        super().__init__(address, layer.around(handler), quotas, security=security)
        self._layer = layer

    async def _begin(self, raw: socket.socket, peer: str) -> None:
        if self._layer.refuses():
            reset_on_close(raw)
            raw.close()
        else:
            await super()._begin(raw, peer)
