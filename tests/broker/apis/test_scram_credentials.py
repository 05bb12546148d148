"""Credentials of SCRAM by Kafka's protocol: what is kept, described and refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from seglog.protocol.apis import ApiKey
from tests.broker.broker_thread import RunningNode, Wire


def upsertion(name: str, mechanism: int = 1, iterations: int = 4096) -> dict[str, object]:
    return {"name": name, "mechanism": mechanism, "iterations": iterations, "salt": b"s", "salted_password": b"p"}


def deletion(name: str, mechanism: int = 1) -> dict[str, object]:
    return {"name": name, "mechanism": mechanism}


def alter(wire: Wire, *changes: dict[str, object]) -> dict[str, tuple[int, str | None]]:
    answer = wire.ask(
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        deletions=[one for one in changes if "salt" not in one],
        upsertions=[one for one in changes if "salt" in one],
    )
    return {one.user: (one.error_code, one.error_message) for one in answer.results}


def described(wire: Wire, *users: str) -> dict[str, tuple[int, list[tuple[int, int]]]]:
    answer = wire.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, users=[{"name": user} for user in users] or None)
    return {
        one.user: (one.error_code, [(info.mechanism, info.iterations) for info in one.credential_infos])
        for one in answer.results
    }


def test_credentials_are_set_described_and_deleted(wire: Wire) -> None:
    names = ("ann", "b.c/д", "..")
    assert alter(wire, *(upsertion(name, mechanism) for name in names for mechanism in (1, 2))) == dict.fromkeys(
        names, (0, None)
    )
    assert described(wire) == {name: (0, [(1, 4096), (2, 4096)]) for name in sorted(names)}
    assert alter(wire, deletion("ann", 2), upsertion("ann", 1, 8192)) == {"ann": (0, None)}
    assert described(wire, "ann") == {"ann": (0, [(1, 8192)])}
    assert alter(wire, deletion("ann"), deletion("b.c/д"), deletion("b.c/д", 2), deletion(".."), deletion("..", 2)) == (
        dict.fromkeys(names, (0, None))
    )
    assert described(wire) == {}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (upsertion(""), 93),
        (upsertion("bob", 0), 33),
        (upsertion("bob", 3), 33),
        (upsertion("bob", iterations=4095), 93),
        (upsertion("bob", iterations=16385), 93),
        (upsertion("b" * 256), 93),
        (deletion("bob"), 91),
        (deletion("bob", 0), 33),
        (deletion(""), 93),
    ],
)
def test_what_cannot_be_is_refused_for_its_user_alone(wire: Wire, change: dict[str, object], code: int) -> None:
    answer = alter(wire, change, upsertion("ann"))
    assert {user: error for user, (error, _) in answer.items()} == {change["name"]: code, "ann": 0}
    assert alter(wire, deletion("ann")) == {"ann": (0, None)}


def test_one_credential_cannot_be_altered_twice(wire: Wire) -> None:
    assert alter(wire, upsertion("ann"), upsertion("ann"))["ann"][0] == 92
    assert described(wire, "ann", "ann")["ann"][0] == 92
    assert described(wire, "ann")["ann"][0] == 91


def test_credentials_outlive_the_broker(start: Callable[..., RunningNode]) -> None:
    node = start()
    with Wire(node.bootstrap) as wire:
        alter(wire, upsertion("ann"))
    node.stop()
    kept = "".join(path.read_text("utf-8", "replace") for path in Path(node.path).glob("seglog.*") if path.is_file())
    assert '"config/users/ann"' in kept
    assert json.dumps("p")[1:-1] not in kept.split("config/users/ann")[1].split("salt=")[0]
    node.start()
    with Wire(node.bootstrap) as wire:
        assert described(wire) == {"ann": (0, [(1, 4096)])}
