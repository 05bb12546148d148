"""Where a product runs: on one seglog broker, on three of which one is killed, or on Kafka."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Final, Literal, get_args

from tests.broker.python_clients import NewTopic
from tests.clients.clusters import Cluster
from tests.clients.servers import Server
from tests.kit.service import Service
from tests.kit.topics import create_topics

__all__ = ["PLACES", "Place", "PlaceName"]

PlaceName = Literal["one", "three", "kafka"]
PLACES: Final[tuple[PlaceName, ...]] = get_args(PlaceName)
_STATE: Final = {"transaction.state.log.num.partitions": "3"}
_ALONE: Final = {**_STATE, "transaction.state.log.replication.factor": "1", "transaction.state.log.min.isr": "1"}


class Place(Service):
    """``with Place("three", path) as place``. ``bootstrap`` names all brokers."""

    def __init__(self, name: PlaceName, path: Path) -> None:
        self.name = name
        self.replicas = 3 if name == "three" else 1
        self._servers: Server | Cluster = (
            Cluster("ours", path, _STATE)
            if name == "three"
            else Server("kafka" if name == "kafka" else "ours", path, _ALONE)
        )

    @property
    def bootstrap(self) -> str:
        return self._servers.bootstrap

    def start(self) -> None:
        self._stack = ExitStack()
        self._stack.enter_context(self._servers)

    def leave(self) -> None:
        self._stack.close()

    def create(self, *topics: str, partitions: int = 3, compacted: bool = False) -> None:
        config = {"cleanup.policy": "compact"} if compacted else {}
        create_topics(
            self.bootstrap,
            *(NewTopic(topic, partitions, self.replicas, config=config) for topic in topics),
        )

    def disturb(self) -> str:
        """Kill a broker of three for good; says what was done."""
        if not isinstance(self._servers, Cluster):
            return ""
        self._servers.kill(2)
        return "a broker killed"
