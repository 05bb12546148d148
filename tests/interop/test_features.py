"""Features beside a real Kafka: UpdateFeatures, what ApiVersions says of them, and Kafka's tool."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from seglog.cluster.features import SUPPORTED
from seglog.protocol.apis import ApiKey
from tests.cases import case
from tests.clients.java_tools import Steps
from tests.clients.servers import Server
from tests.kafka.jars import CURRENT, PREVIOUS, KafkaVersion
from tests.sequences.both import Both

UP, SAFE, UNSAFE = 1, 2, 3


@pytest.fixture
def features(both: Both) -> Iterator[Both]:
    """Both, with the highest levels at the end."""
    yield both
    highest = [
        {"feature": name, "max_version_level": found.high, "upgrade_type": UP} for name, found in SUPPORTED.items()
    ]
    both.ask(ApiKey.UPDATE_FEATURES, 2, timeout=30_000, feature_updates=highest, validate_only=False)


def levels(both: Both, version: int) -> None:
    """Both say the same about the features that ours has."""
    said = []
    for side in both.sides:
        answer = side.wire().ask(ApiKey.API_VERSIONS, version, client_software_name="test", client_software_version="1")
        assert answer.finalized_features_epoch >= 0
        said.append(
            (
                {
                    (one.name, one.min_version, one.max_version)
                    for one in answer.supported_features
                    if one.name in SUPPORTED
                },
                {
                    (one.name, one.min_version_level, one.max_version_level)
                    for one in answer.finalized_features
                    if one.name in SUPPORTED
                },
            )
        )
    both.compare(*said)


@pytest.mark.parametrize("version", range(3))
def test_feature_levels_change_as_in_kafka(features: Both, version: int) -> None:
    names = [*SUPPORTED, "no.version"]
    for validate_only in (True, False) if version else (False,):
        for name in names:
            for level in (-1, 0, 1, 2, 3, 0):
                for kind in (UP, SAFE, UNSAFE, 0, 9) if version else (UP, SAFE):
                    case()
                    typed: dict[str, Any] = {"upgrade_type": kind} if version else {"allow_downgrade": kind == SAFE}
                    update = {"feature": name, "max_version_level": level, **typed}
                    more: dict[str, Any] = {"validate_only": validate_only} if version else {}
                    features.ask(ApiKey.UPDATE_FEATURES, version, timeout=30_000, feature_updates=[update], **more)
            for told in (3, 4):
                levels(features, told)


def test_without_group_version_1_there_are_no_consumer_groups(features: Both) -> None:
    update = {"feature": "group.version", "max_version_level": 0, "upgrade_type": SAFE}
    features.ask(ApiKey.UPDATE_FEATURES, 2, timeout=30_000, feature_updates=[update], validate_only=False)
    features.ask(
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        1,
        eventually=True,
        group_id="none",
        member_id="m",
        member_epoch=0,
        rebalance_timeout=30_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    features.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, eventually=True, group_ids=["none", ""])


@pytest.mark.parametrize("version", [CURRENT, PREVIOUS])
def test_kafkas_tool_describes_and_changes_levels(version: KafkaVersion, tmp_path: Path) -> None:
    with Server("ours", tmp_path / "log") as server:
        steps = Steps(version, server.bootstrap)
        steps.add("before", "features", "describe")
        steps.add("dry", "features", "downgrade", "--feature", "transaction.version=1", "--dry-run")
        steps.add("down", "features", "downgrade", "--feature", "transaction.version=1")
        steps.add("then", "features", "describe")
        steps.add("no", "features", "downgrade", "--feature", "transaction.version=2")
        steps.add("unsafe", "features", "downgrade", "--unsafe", "--feature", "transaction.version=0")
        steps.add("off", "features", "describe")
        steps.add("up", "features", "upgrade", "--feature", "transaction.version=2")
        steps.add("far", "features", "upgrade", "--feature", "transaction.version=3")
        steps.add("after", "features", "describe")
        ran = steps.run()

    def level(step: str) -> list[list[str]]:
        return [line.split()[1::2] for line in ran[step].lines if "transaction.version" in line]

    assert "transaction.version can be downgraded to 1." in ran["dry"].out, ran
    assert "transaction.version was downgraded to 1." in ran["down"].out, ran
    assert "Can't downgrade to a newer version." in ran["no"].out, ran
    assert "transaction.version was upgraded to 2." in ran["up"].out, ran
    assert "Local controller 1 only supports versions 0-2" in ran["far"].out, ran
    assert level("before") == [["transaction.version", "0", "2", "2", "1"]]
    assert level("then") == [["transaction.version", "0", "2", "1", "2"]]
    assert level("off") == [["transaction.version", "0", "2", "0", "3"]]
    assert level("after") == [["transaction.version", "0", "2", "2", "4"]]
