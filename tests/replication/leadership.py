"""What a node of a simulated world does for the partitions that it leads: who is in sync, and what is committed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from seglog.cluster.model import partition_name
from seglog.replication.replica import Replica
from tests.replication.simulator import LAG_MS
from tests.replication.store import RefusedError

if TYPE_CHECKING:
    from seglog.replication.progress import Progress
    from tests.replication.node import Node


class Leadership:
    """As `seglog.replication.replicas` does it, with calls of the store instead of tasks."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def advanced(self, number: int) -> None:
        """After the high watermark may have moved: answer producers, and see who may join."""
        node = self.node
        partition = node.partitions.get(number)
        if partition is not None:
            partition.advance(node.brokers, node.world.now)
            node.desk.answer(number)
            if partition.progress is not None:
                self._propose(number, partition)

    def check_isr(self) -> None:
        node = self.node
        if node.me is None:
            return
        for number, partition in node.partitions.items():
            self._propose(number, partition)
        node.later(LAG_MS // 2, self.check_isr)

    def _propose(self, number: int, partition: Replica) -> None:
        node = self.node
        if node.in_doubt:
            return
        proposed = partition.propose_isr(node.brokers, node.world.now)
        if proposed is None:
            return
        progress = partition.progress
        assert progress is not None
        name, version = partition_name(node.world.topic.topic_id, number), progress.version
        node.world.note("propose", node.node_id, number, proposed.isr)

        def answered(found: Any) -> None:
            if progress.proposed is not proposed:
                return
            if isinstance(found, RefusedError):
                progress.refused()
            elif found is not None:
                node.note(name, proposed, found)
            else:
                self._read_again(number, progress)

        node.world.ask_store(node.node_id, lambda: node.world.store.cas(name, proposed, version), answered)

    def _read_again(self, number: int, progress: Progress) -> None:
        """Nobody knows whether our change was written: see what is there (KAFKA-2729)."""
        node, proposed = self.node, progress.proposed
        name = partition_name(node.world.topic.topic_id, number)

        def found(value: Any) -> None:
            if progress.proposed is None or progress.proposed is not proposed:
                return  # another change is on its way
            if value is None:
                self._read_again(number, progress)
            elif value[1] == progress.version:
                progress.refused()  # it was read after the change: that was never written
            else:
                node.note(name, *value)

        node.world.ask_store(node.node_id, lambda: node.world.store.values.get(name), found)
