"""Configurations of groups beside a real Kafka, and through kafka-configs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from seglog.coordinators.consumer.group_config import GROUP_KEYS
from seglog.protocol.apis import ApiKey
from tests.clients.java_tools import Steps
from tests.clients.servers import Server
from tests.kafka.jars import CURRENT
from tests.sequences.both import Both

GROUP = 32
SESSION, HEARTBEAT, ASSIGNMENT = (
    "consumer.session.timeout.ms",
    "consumer.heartbeat.interval.ms",
    "consumer.assignment.interval.ms",
)


def described(both: Both, name: str, *keys: str) -> None:
    resource = {"resource_type": GROUP, "resource_name": name, "configuration_keys": keys or tuple(GROUP_KEYS)}
    for synonyms in (False, True):
        both.same(ApiKey.DESCRIBE_CONFIGS, eventually=True, resources=[resource], include_synonyms=synonyms)


def test_group_configuration_changes_as_in_kafka(both: Both) -> None:
    described(both, "never-seen")
    described(both, "")
    for changes in (
        [(SESSION, 0, "50000")],
        [(HEARTBEAT, 0, "6000"), (ASSIGNMENT, 0, "0")],
        [(ASSIGNMENT, 0, "-1")],
        [(ASSIGNMENT, 0, "15001")],
        [(SESSION, 0, "44999")],
        [(SESSION, 0, "60001")],
        [(SESSION, 0, "soon")],
        [(SESSION, 0, "0")],
        [(SESSION, 0, " 51000 ")],
        [(HEARTBEAT, 0, "4999")],
        [(HEARTBEAT, 0, "15001")],
        [(HEARTBEAT, 0, "99999999999")],
        [(SESSION, 2, "50000")],
        [(SESSION, 3, "50000")],
        [(SESSION, 0, None)],
        [("no.such.key", 0, "5")],
        [("no.such.key", 1, None)],
        [("retention.ms", 0, "5")],
        [(SESSION, 0, "50000"), (SESSION, 1, None)],
        [(SESSION, 1, None)],
        [],
        [(HEARTBEAT, 1, None), (ASSIGNMENT, 1, None)],
    ):
        for validate_only in (True, False):
            configs: list[dict[str, Any]] = [
                {"name": key, "config_operation": operation, "value": value} for key, operation, value in changes
            ]
            for name in ("conf-group", ""):
                resource = {"resource_type": GROUP, "resource_name": name, "configs": configs}
                both.same(ApiKey.INCREMENTAL_ALTER_CONFIGS, resources=[resource], validate_only=validate_only)
            described(both, "conf-group")
        both.same(ApiKey.LIST_CONFIG_RESOURCES, eventually=True, resource_types=[GROUP])


@pytest.mark.parametrize("values", [{SESSION: "50000", HEARTBEAT: "5000"}, {HEARTBEAT: "7000"}, {SESSION: "1"}, {}])
def test_whole_group_configuration_is_replaced_as_in_kafka(both: Both, values: dict[str, str]) -> None:
    configs = [{"name": key, "value": value} for key, value in values.items()]
    resource = {"resource_type": GROUP, "resource_name": "replaced", "configs": configs}
    both.same(ApiKey.ALTER_CONFIGS, resources=[resource], validate_only=False)
    described(both, "replaced")


def test_kafkas_tool_changes_and_describes_a_group(tmp_path: Path) -> None:
    entity = ("--entity-type", "groups", "--entity-name", "g")
    with Server("ours", tmp_path / "log") as server:
        steps = Steps(CURRENT, server.bootstrap)
        steps.add("alter", "configs", "--alter", *entity, "--add-config", f"{SESSION}=50000,{HEARTBEAT}=6000")
        steps.add("describe", "configs", "--describe", *entity)
        steps.add("all", "configs", "--describe", "--entity-type", "groups")
        steps.add("wrong", "configs", "--alter", *entity, "--add-config", f"{SESSION}=1")
        steps.add("delete", "configs", "--alter", *entity, "--delete-config", SESSION)
        steps.add("then", "configs", "--describe", *entity)
        ran = steps.run()
    assert "Completed updating config for group g." in ran["alter"].out, ran
    assert f"{SESSION}=50000" in ran["describe"].out, ran
    assert f"{HEARTBEAT}=6000" in ran["all"].out, ran
    assert "must be in the range 45000 to 60000 inclusive." in ran["wrong"].out + ran["wrong"].err, ran
    assert f"{SESSION}=50000" not in ran["then"].out, ran
    assert f"{HEARTBEAT}=6000" in ran["then"].out, ran
