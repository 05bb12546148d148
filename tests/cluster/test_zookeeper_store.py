"""The store in ZooKeeper: the contract on a real server, cut connections, and killed servers."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest
from kazoo.client import KazooClient

from seglog.cluster.store import (
    ANY_VERSION,
    MISSING,
    Change,
    MetadataStore,
    NameExistsError,
    NoSuchStoreError,
    SessionLostError,
    StoreFailedError,
    UnknownOutcomeError,
    VersionedValue,
    in_commits,
)
from seglog.cluster.store_address import open_store
from seglog.cluster.zookeeper_connection import Znode, ZooKeeperConnection
from seglog.cluster.zookeeper_session import ZooKeeperSession
from seglog.cluster.zookeeper_store import ZooKeeperStore
from seglog.core.clock import SystemClock
from tests.cases import case
from tests.cli.run import run_here
from tests.cluster.contract import SOON, TIMEOUT_MS, SharedStoreContract, alive, certain
from tests.cluster.contract_watches import Copy, Told, WatchContract
from tests.cluster.proxy import Proxy
from tests.kafka.zookeeper import ZooKeeperEnsemble, ZooKeeperNode

pytestmark = pytest.mark.interop


class TestZooKeeperStore(SharedStoreContract, WatchContract):
    servers: ClassVar[str]

    @pytest.fixture(autouse=True)
    def _running(self, server: ZooKeeperNode) -> None:
        type(self).servers = server.address

    def address(self, path: Path) -> str:
        return f"zookeeper://{self.servers}/{path.name}"


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 120))


def test_a_mistyped_cluster_is_neither_opened_nor_created(
    server: ZooKeeperNode, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    there, typo = (f"zookeeper://{server.address}/{tmp_path.name}{end}" for end in ("", "-typo"))

    async def work() -> None:
        await (await open_store(there, clock=SystemClock(), session_timeout_ms=TIMEOUT_MS)).close()
        for _ in range(2):
            missing = f"-typo: there is no such cluster; clusters there: .*{tmp_path.name}"
            with pytest.raises(NoSuchStoreError, match=missing):
                await open_store(typo, clock=SystemClock(), session_timeout_ms=TIMEOUT_MS, must_exist=True)
        store = await open_store(there, clock=SystemClock(), session_timeout_ms=TIMEOUT_MS, must_exist=True)
        assert await store.create("a", b"1") == 0
        await store.close()

    run(work)
    told = run_here(capfdbinary)("cluster", "upgrade", "--store", typo)
    assert (told.code, told.out) == (2, b"")
    assert f"{typo}: there is no such cluster; clusters there: " in told.err
    assert f"to begin one: seglog cluster up --store {typo}" in told.err


async def opened(servers: str, path: Path, timeout_ms: int = TIMEOUT_MS) -> MetadataStore:
    return await open_store(f"zookeeper://{servers}/{path.name}", clock=SystemClock(), session_timeout_ms=timeout_ms)


@asynccontextmanager
async def behind(server: ZooKeeperNode, path: Path, timeout_ms: int = TIMEOUT_MS) -> AsyncIterator[Behind]:
    """Open a store whose connections go through a proxy, and one whose connections do not."""
    async with Proxy(server.port) as proxy:
        store, other = await opened(f"127.0.0.1:{proxy.port}", path, timeout_ms), await opened(server.address, path)
        try:
            yield Behind(proxy, store, other)
        finally:
            await other.close()
            await store.close()


class Behind(NamedTuple):
    proxy: Proxy
    store: MetadataStore
    other: MetadataStore


@pytest.mark.parametrize("which", ["callbacks", "completions", "connection"])
def test_a_dead_thread_of_kazoo_is_noticed(
    which: str, server: ZooKeeperNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing restarts the thread: requests would wait forever, and the broker would neither lead nor end."""

    async def work() -> None:
        store = await opened(server.address, tmp_path)
        assert isinstance(store, ZooKeeperStore)
        session = await store.session(TIMEOUT_MS, lambda: None)
        assert isinstance(session, ZooKeeperSession)
        broken = asyncio.ensure_future(store.until_broken())
        client = session.connection._client
        if which == "connection":  # a session whose own has died is lost, and there will be another
            store._connection._client._connection._read_socket = die
        else:
            queue = client.handler.callback_queue if which == "callbacks" else client.handler.completion_queue
            queue.put(die)
        async with asyncio.timeout(SOON):
            assert "has died; restart the broker" in await broken
        await store.close()

    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    run(work)


def die(*_: object) -> None:
    """Raise what kills a thread that gets no memory: kazoo catches only subclasses of Exception."""
    raise SystemExit


@pytest.mark.parametrize("is_applied", [False, True])
def test_change_with_a_lost_response_is_made_once(is_applied: bool, server: ZooKeeperNode, tmp_path: Path) -> None:
    """The connection is lost before or after the server has made the change."""

    async def work() -> None:
        async with behind(server, tmp_path) as (proxy, store, other):
            await store.commit([Change(name, b"", MISSING) for name in ("a", "b", "gone", "new/other")])

            async def lose(*steps: Change) -> list[int]:
                if is_applied:
                    proxy.loses_answers = True
                else:
                    proxy.loses_requests = True
                change = asyncio.create_task(store.commit(steps))
                await asyncio.wait_for(proxy.lost.wait(), SOON)
                if is_applied:
                    while (await other.load("")) == before:
                        await asyncio.sleep(0)
                else:
                    assert await other.load("") == before
                proxy.cut()
                return await change

            for version in range(3):
                before = await other.load("")
                assert await lose(Change("a", b"%d" % version, version)) == [version + 1]
            before = await other.load("")
            steps = (
                Change("a", b"last", ANY_VERSION),
                Change("b", b"last", 0),
                Change("gone", None, 0),
                Change("new/one", b"", MISSING),
            )
            assert await lose(*steps) == [4, 1, MISSING, 0]
            assert await other.load("") == {
                "a": VersionedValue(b"last", 4),
                "b": VersionedValue(b"last", 1),
                "new/one": VersionedValue(b"", 0),
                "new/other": VersionedValue(b"", 0),
            }
            before = await other.load("")
            with pytest.raises(NameExistsError):
                await store.create("a", b"")

    run(work)


def test_many_changes_under_a_connection_that_is_cut_again_and_again(server: ZooKeeperNode, tmp_path: Path) -> None:
    """Each of many counters has the value that its writer was given; a mirror behind the cuts ends up equal."""

    async def work() -> None:
        async with behind(server, tmp_path) as (proxy, store, other):
            rng = random.Random(7)
            copy = Copy(store, "")
            told = Told()
            store.watch("", told)
            await copy.start()
            await store.commit([Change(f"count/{number}", b"0", MISSING) for number in range(8)])

            counted = asyncio.Event()

            async def count(name: str) -> None:
                for version in range(12):
                    case()
                    expected = version if rng.random() < 0.7 else ANY_VERSION
                    assert await store.cas(name, b"%d" % (version + 1), expected) == version + 1
                    counted.set()

            async def cut() -> None:
                while True:
                    await counted.wait()  # a machine that connects slowly would come to nothing
                    counted.clear()
                    await asyncio.sleep(rng.uniform(0.0, 0.25))
                    proxy.delay = rng.choice((0, 0.005, 0.02))
                    proxy.loses_requests, proxy.loses_answers = rng.choice(
                        ((False, True), (True, False), (False, False))
                    )
                    await asyncio.sleep(rng.uniform(0.0, 0.02))
                    proxy.cut()

            cutting = asyncio.create_task(cut())
            await asyncio.gather(*(count(f"count/{number}") for number in range(8)))
            cutting.cancel()
            proxy.cut()
            proxy.delay = 0
            expected = {f"count/{number}": VersionedValue(b"12", 12) for number in range(8)}
            assert await other.load("") == expected
            await told.until("?")  # a lost connection may have lost events
            await copy.until(expected)
            await copy.mirror.stop()

    run(work)


def test_changes_during_a_lost_connection_are_reported_after_it(server: ZooKeeperNode, tmp_path: Path) -> None:
    async def work() -> None:
        async with behind(server, tmp_path) as (proxy, store, other):
            await other.create("a", b"1")
            copy = Copy(store, "")
            await copy.start()
            proxy.is_closed = True
            proxy.cut()
            await other.delete("a")
            await other.create("b", b"2")
            proxy.is_closed = False
            await copy.until({"b": VersionedValue(b"2", 0)})
            await other.create("c", b"3")  # it watches again
            await copy.until({"b": VersionedValue(b"2", 0), "c": VersionedValue(b"3", 0)})
            await copy.mirror.stop()

    run(work)


def test_a_session_is_in_doubt_while_it_has_no_connection_and_lost_after_its_time(
    server: ZooKeeperNode, tmp_path: Path
) -> None:
    async def work() -> None:
        async with behind(server, tmp_path) as (proxy, store, other):
            lost = asyncio.Event()
            session = await store.session(4000, lost.set)
            await store.create("alive/1", b"", session)
            for _ in range(2):  # short cuts it survives
                proxy.is_closed = True
                proxy.cut()
                while certain(session):
                    await asyncio.sleep(0)
                proxy.is_closed = False
                async with asyncio.timeout(SOON):
                    while not certain(session):
                        await asyncio.sleep(0.01)
            assert alive(session)
            assert await other.get("alive/1") is not None
            proxy.is_closed = True
            proxy.cut()
            late = asyncio.create_task(store.create("alive/late", b"", session))
            async with asyncio.timeout(SOON):
                while await other.get("alive/1") is not None:
                    await asyncio.sleep(0.01)
            assert not certain(session)
            assert not lost.is_set()  # nobody can have said so
            proxy.is_closed = False
            await asyncio.wait_for(lost.wait(), SOON)
            assert not alive(session)
            with pytest.raises((SessionLostError, StoreFailedError)):
                await late
            with pytest.raises(SessionLostError):
                await store.create("alive/later", b"", session)
            assert await other.load("alive") == {}
            again = await store.session(2000, lambda: None)
            await store.create("alive/2", b"", again)
            assert await other.list("alive") == ["2"]

    run(work)


def test_a_deaf_connection_makes_a_session_uncertain_before_others_see_its_end(
    server: ZooKeeperNode, tmp_path: Path
) -> None:
    """Nothing is closed, only answers are missing, so only time tells."""

    async def work() -> None:
        async with behind(server, tmp_path) as (proxy, store, other):
            session = await store.session(3000, lambda: None)
            await store.create("alive/1", b"", session)
            proxy.loses_requests = proxy.loses_answers = True
            async with asyncio.timeout(SOON):
                while await other.get("alive/1") is not None:
                    await asyncio.sleep(0.01)
            assert not certain(session)
            proxy.cut()

    run(work)


def test_unknown_outcome_is_raised(server: ZooKeeperNode, tmp_path: Path) -> None:
    """The answer is lost, and then the session that could have found the outcome."""

    async def work() -> None:
        async with behind(server, tmp_path, 1500) as (proxy, store, other):
            await store.create("a", b"")
            proxy.loses_answers = True
            change = asyncio.create_task(store.cas("a", b"1", 0))
            async with asyncio.timeout(SOON):
                while await other.get("a") == VersionedValue(b"", 0):
                    await asyncio.sleep(0)
            proxy.is_closed = True
            proxy.cut()
            with pytest.raises(UnknownOutcomeError):
                await change
            with pytest.raises(StoreFailedError, match="no server answers") as failed:
                await store.get("a")
            assert not isinstance(failed.value, UnknownOutcomeError)
            proxy.is_closed = False
            assert await other.get("a") == VersionedValue(b"1", 1)
            async with asyncio.timeout(SOON):
                while True:
                    try:
                        assert await store.cas("a", b"2", 1) == 2
                        break
                    except StoreFailedError:
                        continue

    run(work)


def test_a_loop_that_hangs_gives_its_session_up(server: ZooKeeperNode, tmp_path: Path) -> None:
    """kazoo's own threads continue: without the watchdog the session would last."""

    async def work() -> None:
        store, other = await opened(server.address, tmp_path), await opened(server.address, tmp_path)
        lost = asyncio.Event()
        session = await store.session(2400, lost.set)
        await store.create("alive", b"", session)
        time.sleep(1.6)  # the loop hangs, for less than the session's time
        assert not certain(session)
        await asyncio.wait_for(lost.wait(), SOON)
        assert await other.get("alive") is None
        await store.close()
        await other.close()

    run(work)


def test_a_server_that_starts_again_has_everything(tmp_path: Path) -> None:
    async def work(node: ZooKeeperNode) -> None:
        store, other = [await opened(node.address, tmp_path, 30_000) for _ in range(2)]  # a JVM's start is waited for
        lost: list[bool] = []
        session = await store.session(30_000, lambda: lost.append(True))
        await store.commit([Change("alive", b"", MISSING, session), Change("a", b"1", MISSING)])
        copy = Copy(store, "")
        await copy.start()
        await asyncio.to_thread(node.kill)
        change = asyncio.create_task(other.cas("a", b"2", 0))
        await asyncio.to_thread(node.start)
        assert await change == 1
        await copy.until({"alive": VersionedValue(b"", 0), "a": VersionedValue(b"2", 1)})
        assert alive(session)
        assert lost == []
        await copy.mirror.stop()
        await store.close()
        await other.close()

    with ZooKeeperNode(tmp_path / "node") as node:
        run(lambda: work(node))


def test_one_of_three_servers_may_be_killed(tmp_path: Path) -> None:
    async def work(ensemble: ZooKeeperEnsemble) -> None:
        stores = [await opened(ensemble.address, tmp_path, 30_000) for _ in range(3)]  # an election is waited for
        lost: list[bool] = []
        session = await stores[0].session(30_000, lambda: lost.append(True))
        await stores[0].create("alive", b"", session)
        await stores[0].commit([Change(f"count/{number}", b"0", MISSING) for number in range(6)])
        copies = [Copy(store, "count") for store in stores]
        for copy in copies:
            await copy.start()

        async def count(store: MetadataStore, name: str, first: int, last: int) -> None:
            for version in range(first, last):
                case()
                assert await store.cas(name, b"%d" % (version + 1), version) == version + 1

        async def all_count(first: int, last: int) -> None:
            await asyncio.gather(*(count(stores[n % 3], f"count/{n}", first, last) for n in range(6)))

        counting = asyncio.create_task(all_count(0, 30))
        await asyncio.to_thread(ensemble.nodes[2].kill)  # of three that start together, the leader
        await counting
        await asyncio.to_thread(ensemble.nodes[2].start)
        await all_count(30, 40)
        for copy in copies:
            await copy.until({f"count/{number}": VersionedValue(b"40", 40) for number in range(6)})
            await copy.mirror.stop()
        assert alive(session)
        assert await stores[1].get("alive") is not None
        for store in stores:
            await store.close()

    with ZooKeeperEnsemble(tmp_path / "nodes") as ensemble:
        run(lambda: work(ensemble))


def test_a_store_of_many_names_is_loaded_by_few_requests(
    server: ZooKeeperNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    real = ZooKeeperConnection.read

    async def read(connection: ZooKeeperConnection, paths: Sequence[str]) -> list[Znode | None]:
        sizes.append(len(paths))
        return await real(connection, paths)

    monkeypatch.setattr(ZooKeeperConnection, "read", read)

    async def work() -> None:
        store = await opened(server.address, tmp_path)
        steps = [Change(f"many/{number // 100}/{number % 100}", bytes(100), MISSING) for number in range(5_000)]
        for commit in in_commits(steps):
            await store.commit(commit)
        sizes.clear()
        assert len(await store.load("")) == 5_000
        assert set(sizes) == {200}
        assert len(sizes) < 500  # a lost connection repeats the load
        assert len(await store.list("many")) == 50
        await store.close()

    run(work)


def test_nodes_that_an_operator_deleted_are_created_again(server: ZooKeeperNode, tmp_path: Path) -> None:
    async def work() -> None:
        store = await opened(server.address, tmp_path)
        await store.create("folder/a", b"")
        await store.delete("folder/a")
        client = KazooClient(server.address)
        await asyncio.to_thread(client.start)
        await asyncio.to_thread(client.delete, f"/seglog/{tmp_path.name}/names/folder")
        assert await store.list("") == []
        assert await store.create("folder/b", b"") == 0
        await asyncio.to_thread(client.stop)
        await asyncio.to_thread(client.close)
        await store.close()

    run(work)
