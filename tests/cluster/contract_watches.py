"""The contract of a store's watches: names, no change missed, and mirrors that end equal."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from pathlib import Path

from seglog.cluster.mirror import Mirror
from seglog.cluster.store import ANY_VERSION, MISSING, Change, CommitStep, MetadataStore, StoreError, VersionedValue
from tests.cases import case
from tests.cluster.contract import SOON, StoreContract

_NAMES = [f"{top}{below}" for top in ("a", "b", "ab") for below in ("", "/x", "/y", "/x/1", "/x/2", "/y/1")]


class Told:
    """The calls of a watch."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._more = asyncio.Event()

    def __call__(self, names: frozenset[str] | None) -> None:
        assert names is None or names
        self.names |= {"?"} if names is None else names
        self._more.set()

    async def until(self, *names: str) -> None:
        """Wait until all of these were reported, and forget them."""
        async with asyncio.timeout(SOON):
            while not self.names.issuperset(names):
                self._more.clear()
                await self._more.wait()
        self.names.clear()


class Copy:
    """A mirror that checks the promises of mirrors at each change."""

    def __init__(self, store: MetadataStore, name: str) -> None:
        self.mirror = Mirror(store, name, self._changed)
        self.seen: dict[str, VersionedValue] = {}
        self._left: set[tuple[str, VersionedValue]] = set()
        self._more = asyncio.Event()

    async def start(self) -> None:
        await self.mirror.start()
        self.seen = dict(self.mirror.values)

    def _changed(self, names: frozenset[str]) -> None:
        assert names
        for name in names:
            now, before = self.mirror.values.get(name), self.seen.pop(name, None)
            if before is not None and before != now:
                self._left.add((name, before))
            if now is not None:
                self.seen[name] = now
                assert (name, now) not in self._left, "an older value came back; each is written once"
        self._more.set()

    async def until(self, expected: Mapping[str, VersionedValue]) -> None:
        async with asyncio.timeout(SOON):
            while self.seen != expected:
                self._more.clear()
                await self._more.wait()
        assert self.mirror.values == expected


def part(values: Mapping[str, VersionedValue], tree: str) -> dict[str, VersionedValue]:
    return {name: value for name, value in values.items() if not tree or name == tree or name.startswith(f"{tree}/")}


async def storm(store: MetadataStore, rng: random.Random, number: list[int], commits: int) -> None:
    """Random commits, some of which are refused. No value is written twice."""
    known: dict[str, VersionedValue] = {}
    for _ in range(commits):
        case()
        if rng.random() < 0.3 or not known:
            known = await store.load("")
        steps: list[CommitStep] = []
        for name in rng.sample(_NAMES, rng.choice((1, 1, 1, 2, 5))):
            number[0] += 1
            version = known[name].version if name in known else MISSING
            value = None if version != MISSING and rng.random() < 0.3 else b"%d" % number[0]
            steps.append(Change(name, value, ANY_VERSION if version >= 0 and rng.random() < 0.2 else version))
        try:
            versions = await store.commit(steps)
        except StoreError:
            known = {}
            continue
        for step, version in zip(steps, versions, strict=True):
            known.pop(step.name, None)
            if version != MISSING and isinstance(step, Change):
                known[step.name] = VersionedValue(step.value or b"", version)


class WatchContract(StoreContract):
    def test_a_watch_tells_of_changes_here_and_elsewhere(self, tmp_path: Path) -> None:
        async def work(one: MetadataStore, other: MetadataStore) -> None:
            told = Told()
            end = one.watch("a", told)
            await one.get("a")  # the watch is there
            for change, name in (
                (other.create("a", b""), "a"),
                (other.cas("a", b"1", 0), "a"),
                (one.create("a/b/c", b""), "a/b/c"),
                (one.cas("a/b/c", b"1", 0), "a/b/c"),
                (other.delete("a/b/c"), "a/b/c"),
                (one.delete("a"), "a"),
            ):
                await change
                await told.until(name)
            await other.commit([Change(name, b"", MISSING) for name in ("a/1", "a/2", "b", "ab")])
            await told.until("a/1", "a/2")
            assert told.names <= {"a/1", "a/2"}
            told.names.clear()
            marker = Told()
            one.watch("ab", marker)
            await one.get("a")
            end()
            await other.create("a", b"")
            await other.cas("ab", b"", 0)
            await marker.until("ab")
            assert told.names == set()

        self.run(tmp_path, work)

    def test_end_of_a_session_is_reported_by_its_names(self, tmp_path: Path) -> None:
        async def work(one: MetadataStore, other: MetadataStore) -> None:
            session = await one.session(60_000, lambda: None)
            await one.create("alive/1", b"", session)
            told = Told()
            other.watch("", told)
            await other.get("alive")
            await session.close()
            await told.until("alive/1")

        self.run(tmp_path, work)

    def test_mirror_contains_changes_made_during_its_start(self, tmp_path: Path) -> None:
        async def work(one: MetadataStore, other: MetadataStore) -> None:
            await one.create("a", b"1")
            copies = [Copy(one, "") for _ in range(3)]
            await asyncio.gather(*(copy.start() for copy in copies), other.cas("a", b"2", 0), other.create("b", b"1"))
            for copy in copies:
                await copy.until({"a": VersionedValue(b"2", 1), "b": VersionedValue(b"1", 0)})
                await copy.mirror.stop()
            await other.delete("b")
            last = Copy(one, "b")
            await last.start()
            assert last.mirror.values == {}
            assert all(copy.mirror.values.keys() == {"a", "b"} for copy in copies)

        self.run(tmp_path, work)

    def test_mirrors_end_equal_after_a_storm(self, tmp_path: Path) -> None:
        async def work(one: MetadataStore, other: MetadataStore) -> None:
            for seed in range(3):
                rng = random.Random(seed)
                copies = {tree: Copy(one, tree) for tree in ("", "a", "b/x", "ab/none")}
                for copy in copies.values():
                    await copy.start()
                number = [max((int(one.value) for one in copies[""].seen.values()), default=0)]
                writers = [(store, random.Random(rng.random())) for store in (one, other, other)]
                await asyncio.gather(*(storm(store, own, number, 40) for store, own in writers))
                values = await other.load("")
                for tree, copy in copies.items():
                    await copy.until(part(values, tree))
                    await copy.mirror.stop()

        self.run(tmp_path, work)
