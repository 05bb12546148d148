"""Topic changes of a cluster that race with others, or whose answers are lost; and many changes, compared with a
dictionary."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog.broker.requests import ApiError
from seglog.broker.topics.topics import Topic
from seglog.cluster.model import RAISED, TopicState, encode, topic_name
from seglog.cluster.sqlite_store import SqliteStore
from seglog.cluster.store import MISSING, Change, CommitStep, Names, UnknownOutcomeError, Versions
from seglog.core.broker_config import BrokerConfig
from seglog.core.errors import TopicExistsError, UnknownTopicError
from seglog.protocol.apis import ApiKey
from tests.broker.cluster_desk import SOON, Desk, run
from tests.cases import case
from tests.cluster.faulty import AFTER, BEFORE, UNKNOWN, Faulty


async def behind_its_back(desk: Desk, name: str) -> TopicState:
    """Another broker makes a topic; the view of this one has had no time to see it."""
    state = TopicState(name=name, topic_id=UUID(int=77), assignment=((1,),))
    await desk.store.create(topic_name(name), encode(state))
    return state


def test_names_collide_with_what_is_not_seen_yet(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        await desk.view.stop()  # it sees nothing more
        await behind_its_back(desk, "a.b")
        with pytest.raises(ApiError, match=r"collides with existing topic: a\.b"):
            await desk.changes.create("a_b", [(1,)], {})
        assert await desk.store.list("topics") == ["a.b"]

    run(tmp_path, work)


@pytest.mark.parametrize("other_name", ["a.b", "a_b", "x_y"])
def test_names_collide_with_what_another_broker_makes_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other_name: str
) -> None:
    """Both have looked, and found no such name."""

    async def work(desk: Desk, other: Desk) -> None:
        real = desk.store.list

        async def looked(name: str) -> Names:
            found = await real(name)
            monkeypatch.setattr(desk.store, "list", real)
            await other.changes.create(other_name, [(1,)], {})
            return found

        monkeypatch.setattr(desk.store, "list", looked)
        if other_name == "x_y":
            await desk.changes.create("a_b", [(1,)], {})
        elif other_name == "a_b":
            with pytest.raises(TopicExistsError):
                await desk.changes.create("a_b", [(1,)], {})
        else:
            with pytest.raises(ApiError, match=r"collides with existing topic: a\.b"):
                await desk.changes.create("a_b", [(1,)], {})
        assert set(await desk.store.list("topics")) == {other_name, *(["a_b"] if other_name == "x_y" else [])}

    run(tmp_path, work, desks=2)


def test_what_became_of_a_topic_that_is_made_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer of the store is lost."""

    async def work(desk: Desk) -> None:
        faulty = Faulty(desk.store)
        monkeypatch.setattr(desk.changes, "_store", faulty)
        for number, before in enumerate(("first", "later")):
            faulty.fail(UNKNOWN, BEFORE)
            for _ in range(2):
                with pytest.raises(ApiError) as refused:
                    await desk.changes.create(f"{before}_1", [(1,)], {})
                assert refused.value.code == 7
            faulty.fail(AFTER)
            assert (await desk.changes.create(f"{before}_1", [(1,)], {})).name == f"{before}_1"
            assert len(desk.topics.by_name) == number + 1

    run(tmp_path, work)


def test_a_topic_that_is_not_seen_yet_exists(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        made = await behind_its_back(desk, "t")
        with pytest.raises(TopicExistsError):
            await desk.changes.create("t", [(1,)], {})
        assert desk.topics.by_name["t"].topic_id == made.topic_id
        assert (await desk.changes.ensure("t", 5, {})).topic_id == made.topic_id

    run(tmp_path, work)


def test_a_topic_that_was_made_anew_is_another_one(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        old = await desk.changes.create("t", [(1,)], {})
        await desk.changes.delete(old)
        new = await desk.changes.create("t", [(1,)], {})
        for refused in (desk.changes.delete(old), desk.changes.add_partitions(old, [(1,)])):
            with pytest.raises(UnknownTopicError):
                await refused
        assert desk.topics.by_name["t"].topic_id == new.topic_id

    run(tmp_path, work)


def test_changes_at_once_are_all_there(tmp_path: Path) -> None:
    keys = {"retention.ms": "1", "segment.ms": "2", "flush.ms": "3", "retention.bytes": "4", "flush.messages": "5"}

    async def work(desk: Desk, other: Desk) -> None:
        topic = await desk.changes.create("t", [(1, 2)], {})
        assert await other.view.until(lambda: "t" in other.topics.by_name, SOON)
        await asyncio.gather(
            *(
                (desk, other)[number % 2].changes.alter("t", {key: value})
                for number, (key, value) in enumerate(keys.items())
            ),
            desk.changes.add_partitions(topic, [(2, 1)]),
        )

        def has(one: Desk) -> bool:
            return one.topics.overrides("t") == keys

        for one in (desk, other):
            assert await one.view.until(partial(has, one), SOON)
        assert len(desk.topics.by_name["t"].partitions) == 2

    run(tmp_path, work, desks=2)


def test_config_is_completed_and_what_a_topic_says_itself_is_kept(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        await desk.changes.create("t", [(1,)], {"segment.ms": "2"})
        await desk.changes.complete_config("t", {"flush.messages": "1", "segment.ms": "9"})
        assert desk.topics.overrides("t") == {"flush.messages": "1", "segment.ms": "2"}
        await desk.changes.alter("t", {"flush.messages": "7"})
        await desk.changes.complete_config("t", {"flush.messages": "1"})
        assert desk.topics.overrides("t") == {"flush.messages": "7", "segment.ms": "2"}

    run(tmp_path, work)


def test_only_one_of_two_who_grow_a_topic_does(tmp_path: Path) -> None:
    async def work(desk: Desk, other: Desk) -> None:
        await desk.changes.create("t", [(1,)], {})
        assert await other.view.until(lambda: "t" in other.topics.by_name, SOON)
        topics: list[Topic] = [one.topics.by_name["t"] for one in (desk, other)]
        results = await asyncio.gather(
            *(one.changes.add_partitions(topic, [(1,)]) for one, topic in zip((desk, other), topics, strict=True)),
            return_exceptions=True,
        )
        refused = [one for one in results if one is not None]
        assert len(refused) == 1
        assert isinstance(refused[0], ApiError)
        assert refused[0].code == 37
        assert refused[0].message == "Topic already has 2 partition(s)."

    run(tmp_path, work, desks=2)


def _kind(change: Change) -> str:
    return "delete" if change.value is None else "create" if change.version == MISSING else "cas"


class ForgetfulStore(SqliteStore):
    """Its answers to some changes are lost: after the change was made, or before it."""

    losing: ClassVar[list[str]] = []

    async def commit(self, steps: Sequence[CommitStep]) -> Versions:
        (change, kind), *_ = [(one, _kind(one)) for one in steps if isinstance(one, Change) and one != RAISED]
        self._lose(change.name, f"before {kind}")
        versions = await super().commit(steps)
        self._lose(change.name, f"after {kind}")
        return versions

    def _lose(self, name: str, when: str) -> None:
        if when in self.losing and name.startswith("topics/"):
            self.losing.remove(when)
            raise UnknownOutcomeError(f"the connection was lost {when}")


def test_what_became_of_a_write_whose_answer_was_lost(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        lose: Callable[[str], None] = ForgetfulStore.losing.append

        async def create() -> int:
            topics = [{"name": "t", "num_partitions": 1, "replication_factor": 1}]
            return int((await desk.ask(ApiKey.CREATE_TOPICS, topics=topics, timeout=0)).topics[0].error_code)

        async def configure(value: str) -> int:
            configs = [{"name": "retention.ms", "value": value}]
            resource = {"resource_type": 2, "resource_name": "t", "configs": configs}
            return int((await desk.ask(ApiKey.ALTER_CONFIGS, resources=[resource])).responses[0].error_code)

        async def delete() -> int:
            answer = await desk.ask(ApiKey.DELETE_TOPICS, topics=[{"name": "t"}], timeout=60_000)
            return int(answer.responses[0].error_code)

        for act, name in ((create, "create"), (lambda: configure("5"), "cas"), (delete, "delete")):
            lose(f"before {name}")
            assert await act() == 7  # nothing was done: to be tried again
            lose(f"after {name}")
            assert await act() == 0
        assert not ForgetfulStore.losing
        assert not desk.topics.by_name

    run(tmp_path, work, kind=ForgetfulStore)


def test_a_configuration_that_cannot_be_in_force_is_passed_over(tmp_path: Path) -> None:
    """A later seglog may have written it: what is in force stays, and what comes after that is taken up."""

    async def work(desk: Desk) -> None:
        effects: asyncio.Queue[BrokerConfig] = asyncio.Queue()
        following = asyncio.ensure_future(desk.configuration.follow(desk.view, desk.changes, effects.put_nowait))
        name = "config/brokers/default"
        await desk.store.create(name, json.dumps({"max.connections": "of another time"}).encode())
        assert await desk.view.until(lambda: name in desk.view.configs, SOON)
        await desk.store.cas(name, b"[]", 0)
        assert await desk.view.until(lambda: desk.view.configs[name] == b"[]", SOON)
        await desk.store.cas(name, json.dumps({"max.connections": "33"}).encode(), 1)
        async with asyncio.timeout(SOON):
            waiting = asyncio.ensure_future(effects.get())
            done, _ = await asyncio.wait([waiting, following], return_when=asyncio.FIRST_COMPLETED)
        assert done == {waiting}
        assert waiting.result().max_connections == 33
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    run(tmp_path, work)


NAMES = ("a", "b.c", "b_c", "d")
STEPS = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.sampled_from(NAMES),
        st.sampled_from(("create", "create", "delete", "grow", "configure")),
        st.integers(1, 3),
    ),
    max_size=12,
)


@settings(max_examples=10)
@given(STEPS)
def test_two_brokers_make_what_one_would(steps: list[tuple[int, str, str, int]]) -> None:
    """Whoever is asked: afterwards there is what a dictionary has, and all say the same."""
    case()
    model: dict[str, tuple[int, str | None]] = {}

    async def work(*desks: Desk) -> None:
        for which, name, what, number in steps:
            code = await _one(desks[which], name, what, number)
            assert code == _expected(model, name, what, number), (name, what, number)
            found = _topics(desks[which])
            seen = {topic: (len(state.assignment), state.config.get("retention.ms")) for topic, state in found}
            assert await desks[1 - which].view.until(lambda: _topics(desks[0]) == _topics(desks[1]), SOON)
            assert seen == model

    with TemporaryDirectory() as path:
        run(Path(path), work, desks=2)


def _topics(desk: Desk) -> list[tuple[str, TopicState]]:
    return sorted(desk.view.topics.items())


async def _one(desk: Desk, name: str, what: str, number: int) -> int:
    if what == "create":
        topics = [{"name": name, "num_partitions": number, "replication_factor": 2}]
        return int((await desk.ask(ApiKey.CREATE_TOPICS, topics=topics, timeout=0)).topics[0].error_code)
    if what == "delete":
        answer = await desk.ask(ApiKey.DELETE_TOPICS, topics=[{"name": name}], timeout=60_000)
        return int(answer.responses[0].error_code)
    if what == "grow":
        topics = [{"name": name, "count": number, "assignments": None}]
        return int((await desk.ask(ApiKey.CREATE_PARTITIONS, topics=topics, timeout=0)).results[0].error_code)
    resource = {"resource_type": 2, "resource_name": name, "configs": [{"name": "retention.ms", "value": str(number)}]}
    return int((await desk.ask(ApiKey.ALTER_CONFIGS, resources=[resource])).responses[0].error_code)


def _expected(model: dict[str, tuple[int, str | None]], name: str, what: str, number: int) -> int:
    """The error code with which Kafka answers. The model is changed as the cluster must be."""
    there = model.get(name)
    if what == "create":
        if there is not None:
            return 36
        if any(other.replace(".", "_") == name.replace(".", "_") for other in model):
            return 17
        model[name] = (number, None)
    elif there is None:
        return 3
    elif what == "delete":
        del model[name]
    elif what == "grow":
        if number <= there[0]:
            return 37
        model[name] = (number, there[1])
    else:
        model[name] = (there[0], str(number))
    return 0
