"""What a leader checks of the epochs that others name (KIP-101, KIP-320, KIP-595)."""

from __future__ import annotations

from seglog.core.errors import FencedLeaderEpochError, OffsetOutOfRangeError, UnknownLeaderEpochError
from seglog.core.types import NO_EPOCH, TopicPartition
from seglog.storage.log.epochs import EpochEnd
from seglog.storage.log.log import Log


class LeaderEpochChecks:
    """For whoever has a log and is at a leader epoch."""

    __slots__ = ()

    topic_partition: TopicPartition
    leader_epoch: int
    log: Log

    def check_epoch(self, current_epoch: int) -> None:
        """Refuse a client whose metadata are older or newer than ours (KIP-320)."""
        if current_epoch == NO_EPOCH or current_epoch == self.leader_epoch:
            return
        if current_epoch < self.leader_epoch:
            raise FencedLeaderEpochError(f"{self.topic_partition} has leader epoch {self.leader_epoch}")
        raise UnknownLeaderEpochError(f"{self.topic_partition} has leader epoch {self.leader_epoch}")

    def end_offset_for(self, epoch: int) -> EpochEnd:
        """Where the largest epoch at or below ``epoch`` ends (KIP-101)."""
        if epoch == self.leader_epoch:
            return EpochEnd(epoch=epoch, end_offset=self.log.log_end_offset)
        return self.log.end_offset_for_epoch(epoch)

    def diverging_epoch(self, last_fetched_epoch: int, fetch_offset: int) -> EpochEnd | None:
        """Where the reader's log goes apart from this one, if it does (KIP-595)."""
        if last_fetched_epoch == NO_EPOCH:
            return None
        end = self.end_offset_for(last_fetched_epoch)
        if end.epoch == NO_EPOCH or end.end_offset < 0:
            raise OffsetOutOfRangeError(f"{self.topic_partition} knows nothing of epoch {last_fetched_epoch}")
        return end if end.epoch < last_fetched_epoch or end.end_offset < fetch_offset else None
