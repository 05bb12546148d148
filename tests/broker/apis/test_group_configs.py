"""The configurations of groups: kept in the store, under any name that a group may have."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from seglog.protocol.apis import ApiKey
from tests.broker.broker_thread import RunningNode, Wire

GROUP = 32
SESSION = "consumer.session.timeout.ms"
NAMES = ["g", ".", "..", "a/b", "ü 𝄞", "%2E", "x" * 255, 'a"b\n']


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningNode]:
    with RunningNode(tmp_path) as broker:
        yield broker


def alter(wire: Wire, name: str, *changes: tuple[str, int, str | None], validate_only: bool = False) -> int:
    configs = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in changes]
    resource = {"resource_type": GROUP, "resource_name": name, "configs": configs}
    (answer,) = wire.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, resources=[resource], validate_only=validate_only).responses
    return int(answer.error_code)


def described(wire: Wire, name: str) -> dict[str, tuple[str, int]]:
    resource = {"resource_type": GROUP, "resource_name": name, "configuration_keys": None}
    (found,) = wire.ask(ApiKey.DESCRIBE_CONFIGS, resources=[resource]).results
    assert found.error_code == 0
    return {config.name: (config.value, config.config_source) for config in found.configs}


def listed(wire: Wire) -> set[str]:
    found = wire.ask(ApiKey.LIST_CONFIG_RESOURCES, 1, resource_types=[GROUP]).config_resources
    return {one.resource_name for one in found}


def test_a_group_of_any_name_has_a_configuration_that_outlives_the_broker(tmp_path: Path) -> None:
    with RunningNode(tmp_path) as broker, Wire(broker.bootstrap) as wire:
        for number, name in enumerate(NAMES):
            assert alter(wire, name, (SESSION, 0, str(50_000 + number))) == 0
        assert listed(wire) == set(NAMES)
        assert broker.node.groups.rules("a/b").session_timeout == 50_003  # the coordinator goes by it
    with RunningNode(tmp_path) as again, Wire(again.bootstrap) as wire:
        assert listed(wire) == set(NAMES)
        for number, name in enumerate(NAMES):
            assert described(wire, name)[SESSION] == (str(50_000 + number), 8)
            assert alter(wire, name, (SESSION, 1, None)) == 0
            assert described(wire, name)[SESSION] == ("45000", 5)
        assert listed(wire) == set()
        assert again.node.groups.rules("g").session_timeout == 45_000


def test_a_validated_change_is_not_made(broker: RunningNode) -> None:
    with Wire(broker.bootstrap) as wire:
        assert alter(wire, "g", (SESSION, 0, "50000"), validate_only=True) == 0
        assert alter(wire, "g", (SESSION, 0, "1"), validate_only=True) == 40
        assert listed(wire) == set()


def test_a_name_that_is_too_long_for_the_store_is_refused(broker: RunningNode) -> None:
    with Wire(broker.bootstrap) as wire:
        assert alter(wire, "x" * 256, (SESSION, 0, "50000")) == 42
        assert described(wire, "x" * 256)[SESSION] == ("45000", 5)


def test_a_value_that_cannot_be_read_does_not_count(broker: RunningNode, caplog: pytest.LogCaptureFixture) -> None:
    with Wire(broker.bootstrap) as wire:
        for name, value in (("bad", b"["), ("worse", b'{"consumer.session.timeout.ms": "soon"}')):
            broker.on_loop(partial(broker.node.store.create, f"config/groups/{name}", value))
            assert described(wire, name)[SESSION] == ("45000", 5)
    assert "the configuration of group worse in the metadata store cannot be read" in caplog.text
