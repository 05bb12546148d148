"""Kafka's own tools and consumers against what seglog does not have: each ends at once, and says the truth."""

from __future__ import annotations

from pathlib import Path

from tests.clients.java_tools import Steps
from tests.clients.servers import Server
from tests.kafka.jars import CURRENT

TOOLS = {
    "acls": (["--list"], "SecurityDisabledException: No Authorizer is configured."),
    "console-share-consumer": (
        ["--topic", "t", "--timeout-ms", "3000"],
        "The cluster does not support the share group protocol",
    ),
    "delegation-tokens": (
        ["--describe", "--command-config", "/dev/null"],
        "Delegation Token requests are not allowed on PLAINTEXT/1-way SSL channels and on delegation token",
    ),
    "features": (["upgrade", "--feature", "share.version=1"], "does not support this feature."),
    "share-groups": (["--describe", "--group", "g"], "The version of API is not supported"),
    "streams-groups": (["--describe", "--group", "g"], "The version of API is not supported"),
    "transactions": (["list"], "TransactionalId"),
}


def test_tools_for_unsupported_features_fail_at_once_with_the_reason(tmp_path: Path) -> None:
    with Server("ours", tmp_path / "log") as server:
        steps = Steps(CURRENT, server.bootstrap)
        for tool, (arguments, _) in TOOLS.items():
            steps.add(tool, tool, *arguments)
        ran = steps.run()
    for tool, (_, why) in TOOLS.items():
        said = ran[tool].out + ran[tool].err
        assert why in said, (tool, said[-3000:])
        assert "TimeoutException" not in said, (tool, said[-3000:])
