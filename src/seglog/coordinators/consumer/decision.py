"""A decision about a consumer group: records to append, and what follows when these are in the log. Pure.

Nothing of a group changes until its records are appended (``CoordinatorResult``). A request that is refused raises
`CoordinatorError`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from seglog.coordinators.classic.group import ClassicGroup
from seglog.coordinators.classic.state import Now
from seglog.coordinators.consumer.member_timers import TimerChange
from seglog.coordinators.consumer.settings import ConsumerRules
from seglog.coordinators.consumer.topic_image import TopicImage
from seglog.coordinators.consumer_records import ConsumerRecord
from seglog.coordinators.group_records import GroupRecord


class Downgrade(NamedTuple):
    """The classic group that takes the place of a consumer group. ``reason``: why it rebalances; None if it does
    not."""

    group: ClassicGroup
    reason: str | None


class Decision:
    """``upgraded`` is the classic group whose place the consumer group takes. ``expressions`` are to be resolved when
    the records are appended, all at once. ``topics_version`` is the version of the topics that the group was compared
    with."""

    __slots__ = (
        "downgrade",
        "events",
        "expressions",
        "now",
        "records",
        "rules",
        "timers",
        "topics",
        "topics_version",
        "upgraded",
    )

    def __init__(self, now: Now, topics: TopicImage, rules: ConsumerRules) -> None:
        self.now = now
        self.topics = topics
        self.rules = rules
        self.records: list[GroupRecord] = []
        self.timers: list[TimerChange] = []
        self.expressions: frozenset[str] = frozenset()
        self.topics_version: int | None = None
        self.upgraded: ClassicGroup | None = None
        self.downgrade: Downgrade | None = None
        self.events: list[str] = []
        """Log messages, as Kafka's coordinator writes them."""

    def write(self, *records: ConsumerRecord) -> None:
        self.records += records

    def set_timers(self, changes: Iterable[TimerChange]) -> None:
        self.timers += changes

    def resolve(self, expressions: Iterable[str]) -> None:
        self.expressions = frozenset(expressions)

    def compared_topics(self) -> None:
        self.topics_version = self.topics.version

    def upgrade(self, classic: ClassicGroup, records: Iterable[GroupRecord]) -> None:
        """A consumer group takes the place of a classic one."""
        self.upgraded = classic
        self.records += records

    def go_back(self, downgrade: Downgrade, records: Iterable[GroupRecord]) -> None:
        """A classic group takes the place of the consumer group."""
        self.downgrade = downgrade
        self.records += records
