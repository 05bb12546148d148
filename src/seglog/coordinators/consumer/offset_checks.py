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


class CommitCheck:
    """Checks the partitions of one commit. `check_commit` makes it."""

    __slots__ = ("_epoch", "_is_transactional", "_member")

    def __init__(self, member: ConsumerMember | None, epoch: int, *, is_transactional: bool) -> None:
        """``member`` is None if any partition may be committed."""
        self._member = member
        self._epoch = epoch
        self._is_transactional = is_transactional

    def partition(self, place: tuple[str, int], topic_id: UUID | None) -> None:
        """Raises `CoordinatorError`, for the whole request."""
        member = self._member
        if member is None:
            return
        since = None if topic_id is None else member.epoch_of(topic_id, place[1])
        if since is None:
            raise _stale(
                member, f"{TopicPartition(*place)} is not the member's", is_transactional=self._is_transactional
            )
        if self._epoch < since:
            raise _stale(
                member,
                f"{TopicPartition(*place)} is the member's since epoch {since}, not {self._epoch}",
                is_transactional=self._is_transactional,
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
    """Check whether a member, or a client outside of the group, may commit. ``version`` is that of OffsetCommit. Raises
    `CoordinatorError`."""
    is_outside = is_transactional and epoch == -1 and not member_id and instance_id is None
    if is_outside or (epoch < 0 and not group.members):
        return CommitCheck(None, epoch, is_transactional=is_transactional)
    member = group.get(member_id)
    if not is_transactional and not member.is_classic and version < _KNOWS_EPOCHS:
        raise CoordinatorError(
            ErrorCode.UNSUPPORTED_VERSION,
            "OffsetCommit version 9 or above must be used by members using the consumer group protocol",
        )
    if epoch > member.epoch:
        raise _stale(member, f"epoch {epoch} is newer than {member.epoch}", is_transactional=is_transactional)
    return CommitCheck(None if epoch == member.epoch else member, epoch, is_transactional=is_transactional)


def check_fetch(group: ConsumerGroup, member_id: str | None, epoch: int) -> None:
    """Check whether a member, or a client outside of the group, may fetch offsets. Raises `CoordinatorError`."""
    if member_id is None and epoch < 0:
        return
    member = group.get(member_id or "")
    if epoch != member.epoch:
        raise _stale(member, f"epoch {epoch} is not {member.epoch}", is_transactional=False)


def _stale(member: ConsumerMember, why: str, *, is_transactional: bool) -> CoordinatorError:
    knows_stale = not member.is_classic and not is_transactional
    code = ErrorCode.STALE_MEMBER_EPOCH if knows_stale else ErrorCode.ILLEGAL_GENERATION
    return CoordinatorError(code, f"member {member.member_id}: {why}")
