"""UpdateFeatures and the features in ApiVersions, of a broker that is alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from seglog.cluster.features import SUPPORTED, TRANSACTION_VERSION
from seglog.protocol.apis import ApiKey
from tests.broker.broker_thread import RunningNode, Wire

UP, SAFE = 1, 2


def told(wire: Wire, version: int = 4) -> tuple[dict[str, tuple[int, int]], dict[str, int], int]:
    """The supported features, the finalized features, and the epoch."""
    answer = wire.ask(ApiKey.API_VERSIONS, version, client_software_name="test", client_software_version="1")
    return (
        {one.name: (one.min_version, one.max_version) for one in answer.supported_features},
        {one.name: one.max_version_level for one in answer.finalized_features},
        answer.finalized_features_epoch,
    )


def change(wire: Wire, version: int = 2, /, *, validate_only: bool = False, **levels: tuple[int, int]) -> Any:
    updates = [
        {
            "feature": name.replace("_", "."),
            "max_version_level": level,
            **({"upgrade_type": kind} if version else {"allow_downgrade": kind != UP}),
        }
        for name, (level, kind) in levels.items()
    ]
    more = {"validate_only": validate_only} if version else {}
    return wire.ask(ApiKey.UPDATE_FEATURES, version, timeout=30_000, feature_updates=updates, **more)


def test_a_new_broker_has_the_highest_levels_and_keeps_those_it_was_told(tmp_path: Path) -> None:
    highest = {name: found.high for name, found in SUPPORTED.items()}
    broker = RunningNode(tmp_path)
    with broker, Wire(broker.bootstrap) as wire:
        assert told(wire) == (dict(SUPPORTED), highest, 1)
        assert told(wire, 3) == ({}, highest, 1)  # clients of version 3 take a lowest level of 0 for an error
        assert change(wire, transaction_version=(1, SAFE), validate_only=True).error_code == 0
        assert told(wire)[1] == highest
        answer = change(wire, transaction_version=(1, SAFE))
        assert (answer.error_code, answer.error_message) == (0, None)
        assert told(wire) == (dict(SUPPORTED), {**highest, TRANSACTION_VERSION: 1}, 2)
    with RunningNode(tmp_path) as again, Wire(again.bootstrap) as wire:
        assert told(wire) == (dict(SUPPORTED), {**highest, TRANSACTION_VERSION: 1}, 2)
        assert change(wire, transaction_version=(0, SAFE)).error_code == 0
        assert TRANSACTION_VERSION not in told(wire)[1]


@pytest.mark.parametrize("version", range(3))
def test_all_updates_are_made_or_none(tmp_path: Path, version: int) -> None:
    with RunningNode(tmp_path) as broker, Wire(broker.bootstrap) as wire:
        before = told(wire)
        answer = change(wire, version, transaction_version=(2, UP), no_version=(1, UP))
        assert answer.error_code == 95
        assert answer.error_message == (
            "The update failed for all features since the following feature had an error: Invalid update version 1 "
            f"for feature no.version. Local controller {broker.node.identity.node_id} does not support this feature."
        )
        assert told(wire) == before
        answer = change(wire, version, transaction_version=(2, UP))
        assert answer.error_code == 0
        assert [one.feature for one in getattr(answer, "results", ())] == ([TRANSACTION_VERSION] if version < 2 else [])


def test_the_transaction_coordinator_writes_records_of_the_finalized_version(tmp_path: Path) -> None:
    with RunningNode(tmp_path, {"transaction.state.log.num.partitions": "1"}) as broker, Wire(broker.bootstrap) as wire:

        def begin(name: str) -> None:
            answer = wire.ask(
                ApiKey.INIT_PRODUCER_ID,
                4,
                transactional_id=name,
                transaction_timeout=60_000,
                producer_id=-1,
                producer_epoch=-1,
            )
            while answer.error_code in (14, 15, 16, 51):
                answer = wire.ask(
                    ApiKey.INIT_PRODUCER_ID,
                    4,
                    transactional_id=name,
                    transaction_timeout=60_000,
                    producer_id=-1,
                    producer_epoch=-1,
                )
            assert answer.error_code == 0

        wire.ask(ApiKey.FIND_COORDINATOR, 4, key_type=1, coordinator_keys=["a"])
        begin("a")
        assert change(wire, transaction_version=(0, SAFE)).error_code == 0
        begin("b")
        log = broker.node.directories.dirs[0].log("__transaction_state")
        values = [bytes(record.value or b"") for record in log.records()]
    assert [int.from_bytes(value[:2], "big") for value in values] == [1, 0]
