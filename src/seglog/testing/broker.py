"""A broker for tests: real sockets, real files, nothing to install or to start before.

    with Broker({"orders": 3}) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})

It runs in a thread of this process with an event loop of its own, so that it is there at once, in a notebook too; or,
with ``process=True``, as a process, which may be killed. Its data are in a temporary directory, its port is one that
is free, and it keeps both over a restart.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, Unpack

from seglog.core.clock import SystemClock
from seglog.core.quick_imports import without_hypothesis
from seglog.faults.broker_defaults import TEST_SETTINGS
from seglog.faults.fault import Fault, error_code
from seglog.faults.kept_ports import KeptPorts
from seglog.faults.topic_fixture import TopicFixture, TopicRecord, TopicSpec, topic_fixtures
from seglog.testing.injected_fault import BrokerError, BrokerFaults, FaultFields, InjectedFault

if TYPE_CHECKING:
    from seglog.broker.security.demo_authority import DemoCertificate
    from seglog.testing.broker_security import BrokerSecurity, SecurityProtocol, Style
    from seglog.testing.registry.server import RegistryServer

__all__ = ["TEST_SETTINGS", "Broker", "BrokerClock", "BrokerError"]


class BrokerClock:
    """Runs as this machine's, and can be moved ahead. The clocks of clients cannot: they send heartbeats, retry and
    give up by real time."""

    def __init__(self, move: Callable[[float], None]) -> None:
        self.ahead = 0.0
        """Seconds ahead of this machine's clock."""
        self._move = move

    def advance(self, seconds: float) -> None:
        """Move time for the broker: timers run in their order, each at its own time. Returns when everything that
        became due is done: retention, sessions, rebalance and transaction timeouts, delayed answers.

        A broker that is stopped finds the new time when it starts. ValueError for time that goes back."""
        if seconds < 0:
            raise ValueError(f"time does not go back: {seconds}")
        self._move(seconds)
        self.ahead += seconds

    def now_ms(self) -> int:
        """The broker's wall clock: milliseconds since 1970."""
        return SystemClock().now_ms() + round(self.ahead * 1000)


_LOOPBACK: Final = "127.0.0.1"


class Runner(Protocol):
    """Where a broker runs. All of it is called from one thread at a time."""

    def start(self, settings: Mapping[str, str], topics: Mapping[str, TopicFixture], ahead: float) -> str:
        """Run, with these topics and a clock so many seconds ahead; what clients connect to. Raises what `Node.start`
        and `LogDir.create_topic` raise."""

    def stop(self) -> None:
        """End it cleanly. Raises what `Node.stop` raises; it has ended then, too."""

    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def reset(self, topics: Mapping[str, TopicFixture]) -> None: ...
    def create_topic(self, name: str, fixture: TopicFixture) -> None: ...

    def inject(self, faults: Sequence[Fault], *, in_order: bool) -> list[int]:
        """Arm faults; their ids."""

    def control(self, verb: str, argument: Mapping[str, Any]) -> Any:
        """A command of `seglog.faults.broker_control`."""


class KillableRunner(Runner, Protocol):
    """One with a process of its own."""

    def kill(self) -> None: ...


class Broker:
    """A broker that starts at the beginning of a ``with`` and is gone at its end.

    ``topics`` are there from the start and after each `reset`: names, or names with their numbers of partitions, their
    records, or both (`TopicFixture`). A record is a value, or a `TopicRecord`.
    ``settings`` are keys of ``server.properties``; they go over `TEST_SETTINGS`. ``data_dir`` is a directory to use
    instead of a temporary one; it is left where it is. One that a cluster of seglog has used is taken out of it first,
    and its cluster does not take it back: ``copy_of`` starts with a copy of a directory, which is only read. Use a
    broker from one thread at a time; clients may be in any. ``registry``: a schema registry runs beside it
    (`registry_url`), as long as it runs; what is registered is in the topic ``_schemas``.
    ``security``: the protocol of its listener, with certificates and ``users`` (passwords by name; `security` has
    them, and `client_properties` what a client needs).
    """

    def __init__(
        self,
        topics: Mapping[str, TopicSpec] | Iterable[str] = (),
        *,
        settings: Mapping[str, object] = MappingProxyType({}),
        process: bool = False,
        data_dir: str | os.PathLike[str] | None = None,
        copy_of: str | os.PathLike[str] | None = None,
        registry: bool = False,
        security: SecurityProtocol | None = None,
        users: Mapping[str, str] | None = None,
    ) -> None:
        if data_dir is not None and copy_of is not None:
            raise BrokerError("a copy goes into a temporary directory: give `data_dir` or `copy_of`")
        if registry and security is not None:
            raise BrokerError("the schema registry connects without authentication: use a broker without `security`")
        if users is not None and security is None:
            raise BrokerError("`users` need `security`")
        self._security = None if security is None else _security(security, users)
        self.topics = topic_fixtures(topics)
        self.settings = {**TEST_SETTINGS, **{key: _text(value) for key, value in settings.items()}}
        self.is_process = process
        self.data_dir = "" if data_dir is None else os.fspath(data_dir)
        self.is_running = False
        self.is_paused = False
        self._bootstrap = ""
        self.clock = BrokerClock(self._move)
        self.faults = BrokerFaults(self._inject, self._control)
        self._ports = KeptPorts()
        self._is_temporary = data_dir is None
        self._copy_of = None if copy_of is None else os.fspath(copy_of)
        self._remove: weakref.finalize[..., Broker] | None = None
        self._registry = _registry_server() if registry else None
        self._killable = _process_runner() if process else None
        self._runner = self._killable or _thread_runner()

    @property
    def bootstrap(self) -> str:
        """``host:port`` for ``bootstrap.servers``; the same for as long as this object is used."""
        if not self._bootstrap:
            raise BrokerError("the broker was not started: use it in a with statement, or call start()")
        return self._bootstrap

    @property
    def registry_url(self) -> str:
        """``http://host:port`` of the schema registry; the same for as long as this object is used."""
        if self._registry is None:
            raise BrokerError("there is no schema registry: Broker(registry=True) has one")
        if not self._bootstrap:
            raise BrokerError("the broker was not started: use it in a with statement, or call start()")
        return self._registry.url

    @property
    def security(self) -> BrokerSecurity:
        """Its certificates and users."""
        if self._security is None:
            raise BrokerError('the broker has no security: Broker(security="SASL_SSL") has')
        return self._security

    def client_properties(
        self,
        user: str = "alice",
        *,
        password: str | None = None,
        mechanism: str = "SCRAM-SHA-256",
        certificate: DemoCertificate | None = None,
        style: Style = "librdkafka",
    ) -> dict[str, str]:
        """What a client needs to connect as ``user``: as `BrokerSecurity.properties`. Without security, its address."""
        if self._security is None:
            return {"bootstrap.servers": self.bootstrap}
        return self._security.properties(
            self.bootstrap, user, password=password, mechanism=mechanism, certificate=certificate, style=style
        )

    def __repr__(self) -> str:
        state = "paused" if self.is_paused else "running" if self.is_running else "stopped"
        return f"<Broker {self._bootstrap or '(no address yet)'} {state}>"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start, for the first time or again on the same port and data. Raises what is wrong with its settings or its
        directory; nothing happens if it runs."""
        if self.is_running:
            return
        if not self.data_dir:
            self.data_dir = tempfile.mkdtemp(prefix="seglog-")
            self._remove = weakref.finalize(self, shutil.rmtree, self.data_dir, ignore_errors=True)
            if self._copy_of is not None:
                _copy(self._copy_of, self.data_dir)
        elif not self._bootstrap:
            _take_out_of_cluster(self.data_dir)
        port = self._bootstrap.rpartition(":")[2] or "0"
        protocol = "PLAINTEXT" if self._security is None else self._security.protocol
        secured = {} if self._security is None else self._security.settings()
        listeners = f"{protocol}://{_LOOPBACK}:{port}"
        settings = {"listeners": listeners, "log.dirs": self.data_dir, **secured, **self.settings}
        if sys.platform != "linux":  # elsewhere only one socket is bound to a port at a time
            self._ports.release()
        try:
            topics = self._registrys_topic() | ({} if self._bootstrap else self.topics)
            self._bootstrap = self._runner.start(settings, topics, self.clock.ahead)
        finally:
            self._ports.release()
        self.is_running = True
        if self._registry is not None:
            self._registry.start(self._bootstrap)

    def _registrys_topic(self) -> dict[str, TopicFixture]:
        if self._registry is None:
            return {}
        return {self._registry.TOPIC: TopicFixture(config={"cleanup.policy": "compact"})}

    def stop(self) -> None:
        """Stop as on SIGTERM. Data and port are kept for `start`; clients get no answer."""
        if not self.is_running:
            return
        self.resume()
        self.is_running = False
        self.faults.forget()
        self._stop_registry()
        try:
            self._runner.stop()
        finally:
            self._keep_port()

    def kill(self) -> None:
        """End it as by SIGKILL, without a last write. Only a process can be killed."""
        if self._killable is None:
            raise BrokerError("a broker in a thread cannot be killed: Broker(process=True) can")
        self._check_running()
        self.is_running = self.is_paused = False
        self.faults.forget()
        self._stop_registry()
        self._killable.kill()
        self._keep_port()

    def restart(self, *, kill: bool = False) -> None:
        """Stop or `kill` it, and start it again on the same port and data."""
        if self.is_running:
            if kill:
                self.kill()
            else:
                self.stop()
        self.start()

    def pause(self) -> None:
        """Stop answering while connections stay open, as a machine that hangs."""
        self._check_running()
        if not self.is_paused:
            self._runner.pause()
            self.is_paused = True

    def resume(self) -> None:
        """Go on after `pause`, with all that has come in meanwhile."""
        if self.is_paused:
            self._runner.resume()
            self.is_paused = False

    def reset(self) -> None:
        """As new: all topics and groups are deleted, members sent away, and ``topics`` there, empty. A broker that was
        stopped or paused runs again."""
        self.start()
        self.resume()
        self.faults.clear()
        self._stop_registry()
        self._runner.reset(self._registrys_topic() | self.topics)
        if self._registry is not None:
            self._registry.start(self._bootstrap)

    def _stop_registry(self) -> None:
        if self._registry is not None:
            self._registry.stop()

    # Faults

    def inject(self, *faults: Fault, in_order: bool = False) -> list[InjectedFault]:
        """Arm faults until the broker stops, is reset, or `BrokerFaults.clear`. ``in_order`` makes them a script: each
        begins to count when the one before it is over. If a request could meet several, the first does.

        `FaultError` if one can never be shown to a client; then none is armed."""
        return self.faults.inject(faults, in_order=in_order)

    def fail(self, api: str, *, error: int | str, **other: Unpack[FaultFields]) -> InjectedFault:
        """Answer with Kafka's ``error`` (code or name), without carrying the request out. The other partitions of a
        request are carried out if the fault is about one.

            broker.fail("Produce", nth=1, partition=0, error="NOT_LEADER_OR_FOLLOWER")
        """
        return self._one(Fault(effect="error", api=api, error=error_code(error), **other))

    def lose(self, api: str | None = None, **other: Unpack[FaultFields]) -> InjectedFault:
        """Carry the request out (not, with ``applied=False``), do not answer it, and end the connection."""
        return self._one(Fault(effect="lose", api=api, **other))

    def delay(self, api: str | None = None, *, seconds: float, **other: Unpack[FaultFields]) -> InjectedFault:
        """Answer so much later by `clock`. With ``applied=False``, carry the request out later, too."""
        return self._one(Fault(effect="delay", api=api, seconds=seconds, **other))

    def cut(self, api: str | None = None, *, size: int, **other: Unpack[FaultFields]) -> InjectedFault:
        """Send the first ``size`` bytes of the answer, and end the connection."""
        return self._one(Fault(effect="cut", api=api, size=size, **other))

    def throttle(self, api: str | None = None, *, seconds: float, **other: Unpack[FaultFields]) -> InjectedFault:
        """Tell the client in the answer that it is throttled."""
        return self._one(Fault(effect="throttle", api=api, seconds=seconds, **other))

    def reorder(
        self, api: str | None = None, *, count: int = 2, seconds: float = 5.0, **other: Unpack[FaultFields]
    ) -> InjectedFault:
        """Hold requests until there are ``count`` or ``seconds`` have passed, and carry them out in another order.
        Without ``times`` this happens to the next ``count`` requests."""
        other.setdefault("times", count)
        return self._one(Fault(effect="reorder", api=api, count=count, seconds=seconds, **other))

    def refuse_connections(self, *, times: int | None = 1) -> InjectedFault:
        """Reset new connections. After `stop` the kernel refuses them instead (ECONNREFUSED)."""
        return self._one(Fault(effect="refuse", times=times))

    @contextmanager
    def record(self, path: str | os.PathLike[str]) -> Iterator[None]:
        """Write all requests and answers to a file while the ``with`` lasts (`seglog.faults.recording` has the format;
        `replay` plays it). An older recording is replaced; `FaultError` for any other file. One recording at a time; it
        ends when the broker stops, too."""
        self._control("record", {"path": os.path.abspath(path)})
        try:
            yield
        finally:
            if self.is_running and not self.is_paused:
                self._control("stop_recording", {})

    def _one(self, fault: Fault) -> InjectedFault:
        (injected,) = self.inject(fault)
        return injected

    def _inject(self, faults: Sequence[Fault], in_order: bool) -> list[int]:
        self._check_answering()
        return self._runner.inject(faults, in_order=in_order)

    def _control(self, verb: str, argument: Mapping[str, Any]) -> Any:
        self._check_answering()
        return self._runner.control(verb, argument)

    def _move(self, seconds: float) -> None:
        if "cluster.store" in self.settings:
            raise BrokerError("the clock of a cluster's broker does not move: the other brokers' would not")
        if self.is_running:
            self._control("advance", {"seconds": seconds})

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        config: Mapping[str, object] | None = None,
        *,
        records: Sequence[TopicRecord | bytes | str] = (),
    ) -> None:
        """Errors of `LogDir.create_topic`. It is gone after the next `reset`."""
        self._check_answering()
        self._runner.create_topic(name, TopicFixture(partitions=partitions, config=config, records=records))

    def create_replicated(
        self, name: str, partitions: int, config: Mapping[str, object] | None, replication: int
    ) -> None:
        """A topic of a cluster; see `Cluster.create_topic`, which waits for it."""
        self._check_answering()
        fixture = TopicFixture(partitions=partitions, config=config, replication=replication)
        self._runner.create_topic(name, fixture)

    def close(self) -> None:
        """Stop, and remove what is temporary. `start` begins anew, on another port."""
        try:
            if self.is_running and self.is_process and self._is_temporary:
                self.kill()  # its output has no reader any more
            else:
                self.stop()
        finally:
            self._ports.release()
            self._bootstrap = ""
            if self._remove is not None:
                self._remove()
                self._remove = None
            if self._is_temporary:
                self.data_dir = ""

    def _check_running(self) -> None:
        if not self.is_running:
            raise BrokerError("the broker does not run: start() it first")

    def _check_answering(self) -> None:
        self._check_running()
        if self.is_paused:
            raise BrokerError("the broker is paused: resume() it first")

    def _keep_port(self) -> None:
        host, _, port = self._bootstrap.rpartition(":")
        self._ports.keep([(host, int(port))])


# Loaded only by a program that makes a broker.


def _registry_server() -> RegistryServer:
    from seglog.testing.registry.server import RegistryServer

    return RegistryServer()


def _security(protocol: SecurityProtocol, users: Mapping[str, str] | None) -> BrokerSecurity:
    from seglog.testing.broker_security import USERS, BrokerSecurity

    return BrokerSecurity(protocol, USERS if users is None else users)


def _process_runner() -> KillableRunner:
    from seglog.testing.broker_process import ProcessRunner

    return ProcessRunner()


def _thread_runner() -> Runner:
    with without_hypothesis():
        from seglog.testing.broker_thread import ThreadRunner

        import_module("kio.static.primitive")  # which the broker does only when the first request comes
    return ThreadRunner()


def _copy(source: str, target: str) -> None:
    from seglog.testing.directory_copy import copy_directory

    copy_directory(source, target)
    _take_out_of_cluster(target)


def _take_out_of_cluster(path: str) -> None:
    from random import SystemRandom

    from seglog.core.clock import SystemClock
    from seglog.core.fs import OsFs
    from seglog.storage.directory.cluster_mark import leave_cluster, read_mark

    if read_mark(OsFs(), path) is not None:
        leave_cluster(OsFs(), [path], rng=SystemRandom(), now_ms=SystemClock().now_ms())


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
