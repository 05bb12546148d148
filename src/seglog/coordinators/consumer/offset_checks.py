"""Who may commit and fetch the offsets of a consumer group (``ConsumerGroup.validateOffsetCommit``). Pure.

A member with an older epoch may still commit the offsets of partitions that it has had since then: it has not learnt of
its new epoch yet (KIP-1251).
"""

from __future__ import annotations

from uuid import UUID

from seglog.coordinators.consumer.group import ConsumerGroup
from seglog.coordinators.consumer.member import ConsumerMember
from seglog.coordinators.coordinator_error import CoordinatorError
from seglog.core.error_codes import ErrorCode
from seglog.core.types import TopicPartition

_KNOWS_EPOCHS = 9
_KNOWS_STALE_IN_TRANSACTIONS = 6
"""The first versions of OffsetCommit and TxnOffsetCommit whose clients know STALE_MEMBER_EPOCH."""


class CommitCheck:
    """Checks the partitions of one commit. `check_commit` makes it."""

    __slots__ = ("_epoch", "_knows_stale", "_member")

    def __init__(self, member: ConsumerMember | None, epoch: int, *, knows_stale: bool) -> None:
        """``member`` is None if any partition may be committed."""
        self._member = member
        self._epoch = epoch
        self._knows_stale = knows_stale

    def partition(self, place: tuple[str, int], topic_id: UUID | None) -> None:
        """Raises `CoordinatorError`, for the whole request."""
        member = self._member
        if member is None:
            return
        since = None if topic_id is None else member.epoch_of(topic_id, place[1])
        if since is None:
            raise _stale(member, f"{TopicPartition(*place)} is not the member's", knows_stale=self._knows_stale)
        if self._epoch < since:
            raise _stale(
                member,
                f"{TopicPartition(*place)} is the member's since epoch {since}, not {self._epoch}",
                knows_stale=self._knows_stale,
            )


def check_commit(
    group: ConsumerGroup,
    member_id: str,
    instance_id: str | None,
    epoch: int,
    version: int,
    *,
    is_transactional: bool,
) -> CommitCheck:
    """Check whether a member, or a client outside of the group, may commit. ``version`` is that of OffsetCommit, or
    of TxnOffsetCommit. Raises `CoordinatorError`."""
    knows_stale = version >= (_KNOWS_STALE_IN_TRANSACTIONS if is_transactional else _KNOWS_EPOCHS)
    is_outside = is_transactional and epoch == -1 and not member_id and instance_id is None
    if is_outside or (epoch < 0 and not group.members):
        return CommitCheck(None, epoch, knows_stale=knows_stale)
    member = group.get(member_id)
    if not is_transactional and not member.is_classic and version < _KNOWS_EPOCHS:
        raise CoordinatorError(
            ErrorCode.UNSUPPORTED_VERSION,
            "OffsetCommit version 9 or above must be used by members using the consumer group protocol",
        )
    if epoch > member.epoch:
        raise _stale(member, f"epoch {epoch} is newer than {member.epoch}", knows_stale=knows_stale)
    return CommitCheck(None if epoch == member.epoch else member, epoch, knows_stale=knows_stale)


def check_fetch(group: ConsumerGroup, member_id: str | None, epoch: int) -> None:
    """Check whether a member, or a client outside of the group, may fetch offsets. Raises `CoordinatorError`."""
    if member_id is None and epoch < 0:
        return
    member = group.get(member_id or "")
    if epoch != member.epoch:
        raise _stale(member, f"epoch {epoch} is not {member.epoch}", knows_stale=True)


def _stale(member: ConsumerMember, why: str, *, knows_stale: bool) -> CoordinatorError:
    is_told = knows_stale and not member.is_classic
    code = ErrorCode.STALE_MEMBER_EPOCH if is_told else ErrorCode.ILLEGAL_GENERATION
    return CoordinatorError(code, f"member {member.member_id}: {why}")
