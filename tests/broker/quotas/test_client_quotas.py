"""Quotas in the metadata store: what they are called there, how long they stay, and who learns of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from seglog.broker.quotas.client_quotas import Limits, Name, Other, applied, store_name
from seglog.protocol.apis import ApiKey
from tests.broker.broker_thread import RunningNode, Wire
from tests.broker.quotas.quota_requests import is_silent, produce_request, quotas_of, set_quotas
from tests.kit.waiting import wait_until

ABSENT, DEFAULT = Other.ABSENT, Other.DEFAULT
LEVELS: Final[Sequence[tuple[Name, Name]]] = [
    ("ann", "app"), ("ann", DEFAULT), ("ann", ABSENT), (DEFAULT, "app"), (DEFAULT, DEFAULT), (DEFAULT, ABSENT),
    (ABSENT, "app"), (ABSENT, DEFAULT),
]  # fmt: skip


def test_the_first_level_that_has_a_quota_decides() -> None:
    for chosen in itertools.product([False, True], repeat=len(LEVELS)):
        limits: Limits = {level: float(at) for at, level in enumerate(LEVELS) if chosen[at]}
        if any(chosen):
            first = chosen.index(True)
            user, client = LEVELS[first]
            shared_by = "" if user is ABSENT else "ann", "" if client is ABSENT else "app"
            assert applied(limits, "ann", "app") == (first, shared_by)


def test_a_client_without_id_has_the_quotas_of_its_user() -> None:
    assert applied({("ann", ABSENT): 5.0}, "ann", "") == (5.0, ("ann", ""))
    assert applied({(DEFAULT, ABSENT): 5.0}, "ann", "") == (5.0, ("ann", ""))
    assert applied({(ABSENT, DEFAULT): 5.0}, "ann", "") is None
    assert applied({}, "ann", "app") is None


@given(st.lists(st.tuples(st.sampled_from(["client-id", "ip", "user"]), st.none() | st.text(max_size=300)), max_size=3))
def test_each_entity_has_a_name_of_its_own_in_the_store(parts: list[tuple[str, str | None]]) -> None:
    entity = tuple(sorted(dict(parts).items()))
    name = store_name(entity)
    assert len(name.removeprefix("config/quotas/")) <= 255
    assert "/" not in name.removeprefix("config/quotas/")
    for kind, one in entity:
        other = tuple(sorted({**dict(entity), kind: None if one is not None else "x"}.items()))
        assert store_name(other) != name


NAMES = {"user": "CN=ann/x, O=é,%", "client-id": "a" * 300}


def test_quotas_outlive_the_broker(start: Callable[..., RunningNode]) -> None:
    broker = start()
    set_quotas(broker, NAMES, {"producer_byte_rate": 5.0, "request_percentage": 0.5})
    set_quotas(broker, {"user": None}, {"consumer_byte_rate": 7.0})
    set_quotas(broker, {"ip": "127.0.0.9"}, {"connection_creation_rate": 3.0})
    set_quotas(broker, {"client-id": "gone"}, {"producer_byte_rate": 5.0})
    set_quotas(broker, {"client-id": "gone"}, {"producer_byte_rate": None})
    expected = quotas_of(broker)
    assert expected[frozenset(NAMES.items())] == {"producer_byte_rate": 5.0, "request_percentage": 0.5}
    assert len(expected) == 3
    broker.stop()
    broker.start()
    assert quotas_of(broker) == expected


def test_quotas_are_in_force_after_a_restart(start: Callable[..., RunningNode], topic_name: str) -> None:
    broker = start()
    with Wire(broker.bootstrap) as wire:
        wire.create_topic(topic_name)
    set_quotas(broker, {"client-id": "slow"}, {"producer_byte_rate": 1.0})
    broker.stop()
    broker.start()
    with Wire(broker.bootstrap, client_id="slow") as wire:
        assert wire.ask(ApiKey.PRODUCE, 9, **produce_request(topic_name)).throttle_time
        assert is_silent(wire, broker)


def test_all_brokers_of_a_cluster_have_the_quotas(tmp_path: Path) -> None:
    def settings(node: int) -> dict[str, str]:
        return {"cluster.store": f"sqlite:{tmp_path / 'store'}", "node.id": str(node)}

    with ExitStack() as stack:
        one, other = [stack.enter_context(RunningNode(tmp_path / str(node), settings(node))) for node in (1, 2)]
        set_quotas(one, {"client-id": "slow"}, {"request_percentage": 1e-9})
        wait_until(lambda: quotas_of(other) == quotas_of(one), "the quotas")
        with Wire(other.bootstrap, client_id="slow") as wire:
            assert wire.ask(ApiKey.METADATA, topics=[]).throttle_time == 1_000
        set_quotas(other, {"client-id": "slow"}, {"request_percentage": None})
        wait_until(lambda: not quotas_of(one), "no quotas")
        with Wire(one.bootstrap, client_id="slow") as wire:
            assert not wire.ask(ApiKey.METADATA, topics=[]).throttle_time
