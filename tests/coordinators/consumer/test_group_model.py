"""Consumers that join, work, lose answers, fall silent and leave, against what must hold of them."""

from __future__ import annotations

from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from seglog.coordinators.consumer.group import ConsumerGroup
from seglog.coordinators.consumer.member import JOINS, LEAVES_FOR_NOW, ConsumerMember
from seglog.coordinators.coordinator_error import CoordinatorError
from seglog.core.error_codes import ErrorCode
from tests.coordinators.consumer.consumer_driver import REBALANCE, ConsumerDriver, owned

_NAMES = ("t", "u", "v")
_GIVES_UP = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND}


class Consumer:
    """A client: it reads ``has``, and its last response assigned ``wants``."""

    def __init__(self, number: int) -> None:
        self.member_id = f"c{number}"
        self.instance = "static" if number == 0 else None
        self.lives = 0
        self.epoch = JOINS
        self.has: dict[UUID, frozenset[int]] = {}
        self.wants: dict[UUID, frozenset[int]] = {}
        self.topics: tuple[str, ...] = ("t",)
        self.expression = ""
        self.is_in = False
        self.is_silent = False
        self.has_news = False
        """Its next heartbeat says everything: its subscription is new, or an answer was lost."""

    def reset(self) -> None:
        self.epoch, self.has, self.wants, self.is_in = JOINS, {}, {}, False


class GroupModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.driver = ConsumerDriver({"t": 4, "u": 3})
        self.consumers = [Consumer(number) for number in range(4)]
        self.epochs: dict[str, int] = {}
        self.group_epoch = 0

    @property
    def group(self) -> ConsumerGroup | None:
        return self.driver.shard.consumer("g")

    # Clients

    def _heartbeat(self, consumer: Consumer, *, is_lost: bool = False) -> None:
        joins = consumer.epoch == JOINS
        full = joins or consumer.has_news
        try:
            answered = self.driver.heartbeat(
                consumer.member_id,
                consumer.epoch,
                {} if joins else consumer.has,
                topics=consumer.topics if full else None,
                expression=consumer.expression if full else None,
                instance=consumer.instance,
                timeout=REBALANCE if full else -1,
            )
        except CoordinatorError as error:
            if error.code not in {*_GIVES_UP, ErrorCode.UNRELEASED_INSTANCE_ID}:
                raise
            consumer.reset()
            return
        consumer.has_news = is_lost
        if is_lost:
            return
        if not joins:
            assert answered.epoch >= consumer.epoch
        consumer.is_in, consumer.epoch = True, answered.epoch
        if answered.assigned is not None:
            consumer.wants = owned(answered.assigned)
            # It stops reading at once what it has lost, and begins with the rest.
            consumer.has = consumer.wants

    @rule(number=st.integers(0, 3))
    def heartbeat(self, number: int) -> None:
        consumer = self.consumers[number]
        if not consumer.is_silent:
            self._heartbeat(consumer)

    @rule(number=st.integers(0, 3))
    def heartbeat_without_answer(self, number: int) -> None:
        """The client sends everything again with its next heartbeat."""
        consumer = self.consumers[number]
        if consumer.is_in and not consumer.is_silent:
            self._heartbeat(consumer, is_lost=True)

    @rule(number=st.integers(0, 3), topics=st.sets(st.sampled_from(_NAMES), max_size=3), by_expression=st.booleans())
    def subscribe(self, number: int, topics: set[str], by_expression: bool) -> None:
        consumer = self.consumers[number]
        if consumer.is_silent:
            return
        consumer.topics = () if by_expression else tuple(sorted(topics))
        consumer.expression = "[" + "".join(sorted(topics)) + "]" if by_expression and topics else ""
        if not consumer.is_in:
            return
        consumer.has_news = True
        self._heartbeat(consumer)

    @rule(number=st.integers(0, 3), for_now=st.booleans())
    def leave(self, number: int, for_now: bool) -> None:
        consumer = self.consumers[number]
        if not consumer.is_in:
            return
        epoch = LEAVES_FOR_NOW if for_now and consumer.instance else -1
        try:
            self.driver.leave(consumer.member_id, epoch, consumer.instance)
        except CoordinatorError as error:
            if error.code not in _GIVES_UP:
                raise
        consumer.reset()
        if epoch == LEAVES_FOR_NOW:
            consumer.lives += 1
            consumer.member_id = f"c0-{consumer.lives}"

    @rule(number=st.integers(1, 3))
    def fall_silent(self, number: int) -> None:
        """It is cut off: the broker waits for its session to end, and so does the client itself."""
        self.consumers[number].is_silent = True

    @rule(milliseconds=st.sampled_from([100, 10_001, 44_000]))
    def advance(self, milliseconds: int) -> None:
        """A client whose session ends stops reading before another member can have its partitions."""
        self.driver.advance(milliseconds)
        members = () if self.group is None else self.group.members
        for consumer in self.consumers:
            if consumer.is_in and consumer.member_id not in members:
                consumer.reset()
                consumer.is_silent = False

    # The cluster

    @rule()
    @precondition(lambda self: "v" not in self.driver.topics.names)
    def create_topic(self) -> None:
        self.driver.topics.create("v", 2)

    @rule()
    @precondition(lambda self: "v" in self.driver.topics.names)
    def delete_topic(self) -> None:
        self.driver.topics.delete("v")

    @rule()
    def grow_topic(self) -> None:
        self.driver.topics.grow("u", self.driver.topics.count("u") + 1)

    @rule()
    def restart(self) -> None:
        self.driver.restart()

    # What must hold

    @invariant()
    def no_partition_has_two_readers(self) -> None:
        seen: set[tuple[UUID, int]] = set()
        for consumer in self.consumers:
            places = {(topic_id, number) for topic_id, numbers in consumer.has.items() for number in numbers}
            assert not seen & places
            seen |= places

    @invariant()
    def epochs_only_grow(self) -> None:
        if self.group is None:
            return
        assert self.group.epoch >= self.group_epoch
        self.group_epoch = self.group.epoch
        now = {member_id: member.epoch for member_id, member in self.group.members.items() if member.epoch >= 0}
        for member_id, epoch in now.items():
            assert epoch >= self.epochs.get(member_id, 0)
        self.epochs = now

    @invariant()
    def records_make_the_group(self) -> None:
        group, again = self.group, self.driver.replayed().consumer("g")
        if group is None:
            assert again is None
            return
        assert again is not None
        again.check()
        for name in ("epoch", "metadata_hash", "target", "members", "targets", "expressions", "static"):
            assert getattr(again, name) == getattr(group, name), name

    def teardown(self) -> None:
        """All members that are not silent continue: in the end each subscribed partition has a reader."""
        for consumer in self.consumers:
            consumer.is_silent = False
        for _ in range(8):
            self.advance(11_000)
            for consumer in self.consumers:
                self._heartbeat(consumer)
                self.no_partition_has_two_readers()
        assert self.group is not None
        topics = {topic for consumer in self.consumers for topic in self.group.topics_of(self._member(consumer))}
        expected = {
            (self.driver.topics.id_of(topic), number)
            for topic in topics
            if topic in self.driver.topics.names
            for number in range(self.driver.topics.count(topic))
        }
        read = {
            (topic_id, number)
            for consumer in self.consumers
            for topic_id, numbers in consumer.has.items()
            for number in numbers
        }
        assert read == expected

    def _member(self, consumer: Consumer) -> ConsumerMember:
        assert self.group is not None
        return self.group.members[consumer.member_id]


TestGroup = GroupModel.TestCase
TestGroup.settings = settings(stateful_step_count=30)
