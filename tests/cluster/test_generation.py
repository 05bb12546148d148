"""Which generations a broker stores. See also `tests.cluster.contract_controller`."""

from __future__ import annotations

import asyncio
from pathlib import Path

from seglog.cluster.cluster_view import ClusterView
from seglog.cluster.embedded_store import EmbeddedStore
from seglog.cluster.generation import SeenGenerations, seen_name
from seglog.cluster.model import GENERATION, TopicRules
from seglog.cluster.store import ANY_VERSION, MetadataStore, VersionedValue
from seglog.core.ground import THREADS, Ground
from tests.cluster.faulty import Faulty


def test_a_note_of_an_earlier_process_that_arrives_late_lowers_nothing(tmp_path: Path) -> None:
    async def within() -> None:
        store = await EmbeddedStore.open(tmp_path / "store", Ground())
        late = Faulty(store)
        written: list[int] = []
        await store.create(GENERATION, b"0")
        await store.create(seen_name(1), b"0")
        former = await _seen(late, written)
        late.hold_commits()
        noting = asyncio.ensure_future(former.note())
        await late.held.wait()
        await store.cas(GENERATION, b"0", ANY_VERSION)
        await (await _seen(store, written)).note()
        assert written == [1]
        late.release()
        await noting
        assert await store.get(seen_name(1)) == VersionedValue(b"1", 1)
        assert written == [1]
        await store.close()

    asyncio.run(within())


async def _seen(store: MetadataStore, written: list[int]) -> SeenGenerations:
    view = ClusterView(store, lambda _: TopicRules(1, unclean=False))
    await view.start()
    return SeenGenerations(store, "store", view, 1, written.append, THREADS)
