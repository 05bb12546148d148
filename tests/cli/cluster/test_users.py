"""`seglog users`, beside a running broker of the cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from seglog.cli.main import main
from seglog.protocol.apis import ApiKey
from tests.broker.broker_thread import RunningNode, Wire
from tests.kit.waiting import wait_until

SECURED = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
    "node.id": "1",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256",
    "inter.broker.listener.name": "PLAINTEXT",
}


def users(wire: Wire) -> dict[str, list[int]]:
    results = wire.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, users=None).results
    return {one.user: [info.mechanism for info in one.credential_infos] for one in results}


def test_users_are_added_listed_and_deleted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = f"sqlite:{tmp_path / 'store'}"
    (tmp_path / "password").write_text("s3cret, with a comma\nand another line\n")
    add = ["users", "add", "alice", "--store", store, "--password-file", str(tmp_path / "password")]
    assert main(add) == 2
    assert "there is no cluster" in capsys.readouterr().err
    with RunningNode(tmp_path / "log", {**SECURED, "cluster.store": store}) as node:
        port = next(one.host_port for one in node.node.addresses if one.name == "PLAINTEXT")
        assert main(add) == 0
        with Wire(port) as wire:
            wait_until(lambda: users(wire) == {"alice": [1, 2]}, "the broker to know the user")
            assert main(["users", "list", "--store", store]) == 0
            said = capsys.readouterr().out
            assert "alice: SCRAM-SHA-256, SCRAM-SHA-512" in said
            assert "s3cret" not in said
            assert main(["users", "list", "--store", store, "--json"]) == 0
            assert json.loads(capsys.readouterr().out) == {
                "user": "alice",
                "mechanisms": ["SCRAM-SHA-256", "SCRAM-SHA-512"],
            }
            assert main(["users", "delete", "alice", "--store", store, "--dry-run"]) == 0
            assert capsys.readouterr().out == "would delete alice\n"
            assert users(wire) == {"alice": [1, 2]}
            assert main(["users", "delete", "alice", "--store", store]) == 0
            wait_until(lambda: not users(wire), "the broker to forget the user")
        for dry in (["--dry-run"], []):
            assert main(["users", "delete", "alice", "--store", store, *dry]) == 2
        (tmp_path / "password").write_text("\n")
        assert main(add) == 2
        assert "the password is empty" in capsys.readouterr().err
