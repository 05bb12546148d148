"""What happened in a simulated world, and whether it may: the properties that replication promises.

P1 nothing acknowledged is lost, P3 an offset that was read keeps its record, P4 logs agree below their high watermarks,
P5 what consumers see does not go back, P6 one leader an epoch, P7 replicas are equal in the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from seglog.cluster.model import Member, PartitionState
from seglog.records.record import Record
from seglog.storage.log import Log
from seglog.storage.reads import UpTo

if TYPE_CHECKING:
    from tests.replication.simulator import World

_COMPARE_EVERY = 250


class History:
    """Everything that clients were told."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.topic_id = UUID(int=7)
        self.acknowledged: dict[tuple[int, int], int] = {}
        self.read: dict[tuple[int, int], int] = {}
        self.leaders: dict[tuple[int, int], Member] = {}
        self.epochs: dict[str, int] = {}
        self.attempts = 0
        self._looked = 0

    def written(self, name: str, state: PartitionState) -> None:
        """A state came into the store: epochs do not go back."""
        assert state.leader_epoch >= self.epochs.get(name, 0), f"{name}: epoch {state.leader_epoch} after a later one"
        self.epochs[name] = state.leader_epoch

    def leads(self, number: int, epoch: int, who: Member) -> None:
        """P6."""
        first = self.leaders.setdefault((number, epoch), who)
        assert first == who, f"P6: {first} and {who} lead partition {number} in epoch {epoch}"

    def appended(self, node_id: int, number: int, offset: int, value: int) -> None:
        self.world.note("append", node_id, number, offset, value)

    def acknowledge(self, number: int, offset: int, value: int) -> None:
        found = self.acknowledged.setdefault((number, offset), value)
        assert found == value, f"P1: {found} and {value} were both acknowledged at {number}:{offset}"
        seen = self.read.get((number, offset), value)
        assert seen == value, f"P3: {seen} was read at {number}:{offset} where {value} is acknowledged"

    def consumed(self, number: int, records: list[tuple[int, int]]) -> None:
        """P3, and P1 as consumers see it."""
        for offset, value in records:
            first = self.read.setdefault((number, offset), value)
            assert first == value, f"P3: {number}:{offset} was {first} and is {value}"
            acknowledged = self.acknowledged.get((number, offset), value)
            assert acknowledged == value, f"P1: {acknowledged} was acknowledged at {number}:{offset}, {value} is there"

    def check(self) -> None:
        """After each event: the cheap invariants; the comparison of logs now and then."""
        world = self.world
        for node in world.nodes.values():
            for partition in node.partitions.values():
                log = partition.log
                assert log.log_start_offset <= log.high_watermark <= log.log_end_offset
        if world.events % _COMPARE_EVERY == 0:
            self.compare()

    def compare(self, *, whole: bool = False) -> None:
        """P4; with ``whole`` P7: the logs are equal to their ends.

        A replica that has not yet asked anyone since it was started may have lost the end below its high watermark, and
        got back an older one: it knows so when it asks.
        """
        for number in range(self.world.partitions):
            nodes = [node for node in self.world.nodes.values() if number in node.agreeing]
            logs = [node.partitions[number].log for node in nodes]
            for log in logs[1:]:
                first = logs[0]
                end = min(log.high_watermark, first.high_watermark)
                if whole:
                    assert log.log_end_offset == first.log_end_offset == end, f"P7: partition {number} ends apart"
                assert _bytes(log, end) == _bytes(first, end), f"P4: partition {number} below {end}"

    def at_the_end(self) -> None:
        """P1, P7 and P15: everything acknowledged is there, everywhere."""
        self.compare(whole=True)
        for number in range(self.world.partitions):
            for node in self.world.nodes.values():
                partition = node.partitions[number]
                there = dict(_values(partition.log, partition.log.log_end_offset))
                for (of, offset), value in self.acknowledged.items():
                    if of == number:
                        assert there.get(offset) == value, f"P1: {value} at {number}:{offset} is lost"


def _bytes(log: Log, end: int) -> bytes:
    """The batches below ``end``, a high watermark: it is where a batch ends."""
    parts = []
    for segment in log.segments:
        if segment.base_offset < end:
            found = segment.locate(end)
            parts.append(segment.log.pread(segment.size if found is None else found.position, 0))
    return b"".join(parts)


def _values(log: Log, end: int) -> list[tuple[int, int]]:
    """Offsets and values below ``end``."""
    found: list[tuple[int, int]] = []
    offset = log.log_start_offset
    while offset < end:
        slice_ = log.read(offset, 1 << 20, up_to=UpTo.LOG_END)
        records: list[Record] = list(slice_.records())
        if not records:
            break
        found.extend((record.offset, int(record.value or b"")) for record in records if record.offset < end)
        offset = records[-1].offset + 1
    return found
