"""What clients of a simulated world ask of a node: to write with acks=all, and to read what is committed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from seglog.core.errors import NotEnoughReplicasError, NotLeaderError, OffsetOutOfRangeError
from seglog.records.record import NewRecord, encode_batch

if TYPE_CHECKING:
    from tests.replication.node import Node


class Desk:
    """Producers that wait for the high watermark: of each partition (epoch, end offset, whom to tell)."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.waiting: dict[int, list[tuple[int, int, Callable[[str], None]]]] = {}

    def produce(self, number: int, value: int, answer: Callable[[str, int], None]) -> None:
        """``answer`` is told "ok", "failed" (nothing was written) or "unknown", and the offset."""
        node = self.node
        partition = node.partitions[number]
        data = encode_batch([NewRecord(b"%d" % value, timestamp=node.world.now)])
        try:
            appended = partition.append(data, needs_all=True)
        except (NotLeaderError, NotEnoughReplicasError):
            answer("failed", -1)
            return
        offset = appended.first_offset
        node.world.history.appended(node.node_id, number, offset, value)
        waiting = self.waiting.setdefault(number, [])
        waiting.append((partition.leader_epoch, offset + 1, lambda outcome: answer(outcome, offset)))
        node.advanced(number)

    def answer(self, number: int) -> None:
        """Tell those whose records are committed, in the epoch in which they were written."""
        partition = self.node.partitions[number]
        waiting = self.waiting.get(number, [])
        epoch = partition.leader_epoch if partition.progress is not None else -1
        while waiting and waiting[0][1] <= partition.log.high_watermark:
            in_epoch, _, tell = waiting.pop(0)
            tell("ok" if in_epoch == epoch else "unknown")

    def give_up(self, number: int) -> None:
        """Nobody knows what becomes of the records that wait."""
        for _, _, tell in self.waiting.pop(number, []):
            tell("unknown")

    def consume(self, number: int, offset: int, answer: Callable[[list[tuple[int, int]], int], None]) -> None:
        """Records up to the high watermark, and where that is."""
        partition = self.node.partitions[number]
        if partition.progress is None:
            return
        try:
            found = partition.log.read(offset, 1_000)
        except OffsetOutOfRangeError:
            answer([], partition.log.high_watermark)
            return
        records = [(record.offset, int(record.value or b"")) for record in found.records()]
        answer(records, partition.log.high_watermark)
