"""The regular expressions of a consumer group: when the broker resolves them, and what follows. Pure.

They are resolved after the heartbeat that asks for it, for all members at once: the first heartbeat of a member with a
new regular expression gets no partitions of its topics yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from seglog.coordinators.consumer.decision import Decision
from seglog.coordinators.consumer.group import ConsumerGroup
from seglog.coordinators.consumer.patterns import check_pattern
from seglog.coordinators.consumer.target import (
    MemberUpdate,
    bump_epoch,
    dropped_expression,
    members_after,
    subscriptions,
)
from seglog.coordinators.consumer_records import RegularExpressionKey, RegularExpressionValue

_MIN_REFRESH_MS: Final = 10_000
"""``REGEX_BATCH_REFRESH_MIN_INTERVAL_MS``: all topics are compared with all regular expressions of the group."""


class ExpressionChange(Enum):
    """How a heartbeat has changed its member's regular expression (``UpdateRegularExpressionStatus``)."""

    NONE = auto()
    UNRESOLVED = auto()
    """The group's topics change when it is resolved."""
    RESOLVED = auto()
    """The group's topics change now."""


def change_expression(decision: Decision, group: ConsumerGroup, update: MemberUpdate) -> ExpressionChange:
    """Note another regular expression of the member, and have the group's resolved if that is due. Raises
    `CoordinatorError` for one that RE2 refuses."""
    before, after = update.before.expression, update.after.expression
    change = ExpressionChange.NONE
    is_new = False
    if before != after:
        change = ExpressionChange.UNRESOLVED
        if (dropped := dropped_expression(group, update)) is not None:
            decision.write((RegularExpressionKey(group.group_id, dropped), None))
        if after:
            is_new = not group.subscribers_of(after)
            if is_new:
                check_pattern(after)
            elif after in group.expressions:
                change = ExpressionChange.RESOLVED
        elif before:
            change = ExpressionChange.RESOLVED
    if is_new or any(member.expression for member in group.members.values()):
        _resolve_if_due(decision, group, update, is_new=is_new)
    return change


def _resolve_if_due(decision: Decision, group: ConsumerGroup, update: MemberUpdate, *, is_new: bool) -> None:
    latest = next(iter(group.expressions.values()), None)
    if latest is not None and decision.now.wall <= latest.timestamp + _MIN_REFRESH_MS:
        return
    wanted = {member.expression for member in members_after(group, update).values() if member.expression}
    is_due = (
        is_new
        or len(wanted) != len(group.expressions)
        or latest is None
        or latest.version < decision.topics.created_version
        or decision.now.wall > latest.timestamp + decision.rules.regex_refresh_interval
    )
    if is_due:
        decision.resolve(wanted)


def resolved(decision: Decision, group: ConsumerGroup, found: Mapping[str, frozenset[str]]) -> None:
    """Take over the topics that match each regular expression. The group has a new epoch if its topics have changed."""
    after = dict(group.expressions)
    for expression, topics in found.items():
        if group.subscribers_of(expression):
            value = RegularExpressionValue(topics, decision.topics.version, decision.now.wall)
            after[expression] = value
            decision.write((RegularExpressionKey(group.group_id, expression), value))
    metadata_hash = decision.topics.hash_of(subscriptions(list(group.members.values()), after.values()).topics)
    has_changed = any(
        value.topics != (group.expressions[expression].topics if expression in group.expressions else frozenset())
        for expression, value in after.items()
    )
    if has_changed or metadata_hash != group.metadata_hash:
        bump_epoch(decision, group, group.epoch + 1, metadata_hash)
        decision.compared_topics()
