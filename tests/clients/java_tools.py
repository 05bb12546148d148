"""Kafka's command line tools, by the names of their scripts, several of them in one JVM."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from tests.kafka.jars import BEFORE, PREVIOUS, KafkaVersion
from tests.kafka.tools import run_java

_TOOLS = "org.apache.kafka.tools"
_MAINS: Final = {
    "acls": f"{_TOOLS}.AclCommand",
    "broker-api-versions": f"{_TOOLS}.BrokerApiVersionsCommand",
    "cluster": f"{_TOOLS}.ClusterTool",
    "configs": f"{_TOOLS}.ConfigCommand",
    "console-consumer": f"{_TOOLS}.consumer.ConsoleConsumer",
    "console-producer": f"{_TOOLS}.ConsoleProducer",
    "console-share-consumer": f"{_TOOLS}.consumer.ConsoleShareConsumer",
    "consumer-groups": f"{_TOOLS}.consumer.group.ConsumerGroupCommand",
    "consumer-perf-test": f"{_TOOLS}.ConsumerPerformance",
    "delegation-tokens": f"{_TOOLS}.DelegationTokenCommand",
    "delete-records": f"{_TOOLS}.DeleteRecordsCommand",
    "features": f"{_TOOLS}.FeatureCommand",
    "get-offsets": f"{_TOOLS}.GetOffsetShell",
    "leader-election": f"{_TOOLS}.LeaderElectionCommand",
    "log-dirs": f"{_TOOLS}.LogDirsCommand",
    "producer-perf-test": f"{_TOOLS}.ProducerPerformance",
    "reassign-partitions": f"{_TOOLS}.reassign.ReassignPartitionsCommand",
    "metadata-quorum": f"{_TOOLS}.MetadataQuorumCommand",
    "share-groups": f"{_TOOLS}.consumer.group.ShareGroupCommand",
    "streams-groups": f"{_TOOLS}.streams.StreamsGroupCommand",
    "topics": f"{_TOOLS}.TopicCommand",
    "transactions": f"{_TOOLS}.TransactionsCommand",
}
# Where older versions have them elsewhere.
_MAINS_BEFORE: Final = {"configs": "kafka.admin.ConfigCommand"}
_OLD_MAINS: Final[dict[KafkaVersion, dict[str, str]]] = {
    BEFORE: _MAINS_BEFORE,
    PREVIOUS: {
        **_MAINS_BEFORE,
        "broker-api-versions": "kafka.admin.BrokerApiVersionsCommand",
        "cluster": "kafka.tools.ClusterTool",
        "console-producer": "kafka.tools.ConsoleProducer",
    },
}


class Ran(NamedTuple):
    """The output of a tool, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """Those that say something."""
        return [line.rstrip() for line in self.out.splitlines() if line.strip()]


class Steps:
    """Collects tools to run; `run` runs them all, in their order."""

    def __init__(self, version: KafkaVersion, bootstrap: str) -> None:
        self._version = version
        self._bootstrap = bootstrap
        self._names: list[str] = []
        self._steps: list[dict[str, object]] = []

    def add(self, name: str, tool: str, *arguments: str, stdin: str = "", until: str = "") -> None:
        """``name`` is what `run` calls its outcome. It is run again until its output has ``until`` in it, for a minute:
        one broker has said that something is done, and the tool may ask another one, which has not heard of it yet."""
        main = {**_MAINS, **_OLD_MAINS.get(self._version, {})}[tool]
        # This one takes its address as a client's property, in all versions.
        where = [] if tool == "producer-perf-test" else ["--bootstrap-server", self._bootstrap]
        # This one's command comes first.
        told = [*arguments, *where] if tool == "cluster" else [*where, *arguments]
        self._names.append(name)
        self._steps.append({"main": main, "args": told, "in": stdin, "until": until})

    def run(self) -> dict[str, Ran]:
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(self._steps, file)
            file.flush()
            told = run_java("Tools", [file.name], version=self._version, with_ours=True)
        outcomes = [Ran(**json.loads(line)) for line in told.split("\n") if line]
        return dict(zip(self._names, outcomes, strict=True))


def verifiable(version: KafkaVersion, bootstrap: str, tool: str, *arguments: str) -> list[dict[str, Any]]:
    """The messages of ``VerifiableProducer`` or ``VerifiableConsumer``, which do half of their work as they end."""
    told = run_java(f"{_TOOLS}.{tool}", ["--bootstrap-server", bootstrap, *arguments], version=version)
    return [json.loads(line) for line in told.split("\n") if line]


def only(lines: Sequence[str], *parts: str) -> str:
    """The one line that has these parts."""
    (found,) = [line for line in lines if all(part in line for part in parts)]
    return found
