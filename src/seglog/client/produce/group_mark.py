"""A mark that several processes read and one at a time changes: offsets of consumer groups, set in transactions.

Whoever changes the mark initializes the transactional id first. That fences all that did so before: their change is
either complete by then, and read, or it is never made. So reading and writing are one step. Group offsets are used
because every Kafka keeps them, replicates them, and lets them be part of a transaction.

A mark is a number and a text. The text is the offset's metadata, which brokers limit to 4096 characters by default; a
longer one goes on in the groups ``<group>.1``, ``<group>.2`` …, in the same transaction.

Brokers delete offsets that do not change for ``offsets.retention.minutes``. A mark with a `MarkTopic` outlives that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from seglog.client.cluster_connections import GROUP, ClusterConnections
from seglog.client.connection import describe_code
from seglog.client.produce.coordinator import CoordinatorRequests
from seglog.client.produce.mark_topic import MarkTopic
from seglog.client.produce.mark_value import MarkValue
from seglog.client.produce.transaction import Transaction
from seglog.client.retries import Retries
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import RequestFailedError
from seglog.core.types import TopicPartition
from seglog.protocol.apis import ApiKey
from seglog.protocol.message_reader import Message

_STABLE_FROM: Final = 7
"""The version of OffsetFetch that waits for open transactions (KIP-447, Kafka 2.5)."""
_WITH_NAMES: Final = 9
"""Newer versions name topics by id."""
_PART: Final = 4000
_NONE: Final = -1
_READS: Final = 10
"""How often the parts of a mark are read again that is changed meanwhile."""


_NOT_BUSY: Final[frozenset[ErrorCode]] = frozenset()
_PATIENCE: Final = 1.0
"""Seconds for which a reader waits for a change before it fences it. A change takes milliseconds."""
_TIMEOUT: Final = 60.0
"""Seconds after which the coordinator aborts a change of the mark alone."""


class _UnsettledError(RequestFailedError):
    """A change of the mark stays under way."""


class GroupMark:
    """The mark of ``group``, at the offset of ``place``, which must exist. For one thread."""

    def __init__(
        self,
        cluster: ClusterConnections,
        group: str,
        transactional_id: str,
        place: TopicPartition,
        *,
        topic: MarkTopic | None = None,
        timeout: float = _TIMEOUT,
    ) -> None:
        """``topic`` remembers the mark when the offset has expired. ``timeout``: seconds after which the coordinator
        aborts a change."""
        self._cluster = cluster
        self._group = group
        self._place = place
        self._id = transactional_id
        self._topic = topic
        self._timeout = min(timeout, cluster.config.transaction_timeout)

    def read(self) -> MarkValue | None:
        """The mark; None if there is none.

        A change that is under way is waited for. If that takes long, the change is fenced: its process is dead, or it
        will fail.
        """
        return self._read(_PATIENCE, self._fence)

    def read_fenced(self) -> MarkValue | None:
        """The mark, after which nobody who began to change it before can still do so."""
        self._fence()
        return self._read(self._cluster.config.delivery_timeout, lambda: None)

    def set_in(self, transaction: Transaction, value: MarkValue) -> None:
        """Set the mark as a part of a transaction, which must be one of the mark's transactional id."""
        for group, text in self._parts(value.text):
            transaction.commit_offset(group, self._place, value.number, text)
        if self._topic is not None:
            self._topic.write(transaction, self._group, value)

    def _read(self, patience: float, settle: Callable[[], object]) -> MarkValue | None:
        retries = Retries(self._cluster.config, patience)
        for _ in range(_READS):
            try:
                first = self._fetch(self._group, retries)
                if first is None:
                    return None if self._topic is None else self._topic.read(self._group)
                count, _, text = first.text.partition(" ")
                parts = [self._fetch(f"{self._group}.{number}", retries) for number in range(1, int(count))]
            except _UnsettledError:
                settle()
                retries = Retries(self._cluster.config, self._cluster.config.delivery_timeout)
                continue
            whole = [part.text for part in parts if part is not None and part.number == first.number]
            if len(whole) == len(parts):
                return MarkValue(first.number, text + "".join(whole))
        raise RequestFailedError(f"group {self._group}: the parts of its mark do not belong together")

    def _fence(self) -> Transaction:
        transaction = Transaction(self._cluster, self._id, timeout=self._timeout)
        transaction.begin()
        return transaction

    def change(
        self,
        choose: Callable[[MarkValue | None], MarkValue | None],
        write: Callable[[Transaction], object] | None = None,
    ) -> MarkValue | None:
        """Set the mark to what ``choose`` makes of it, unless that is None; returns the mark as it is then.

        ``write`` writes records in the same transaction, so that they and the mark are visible together or not at all.
        `ProducerFencedError` if another process changes it meanwhile: then it has not been changed here. After any
        other error it may have been changed.
        """
        transaction = self._fence()
        current = self._read(self._cluster.config.delivery_timeout, lambda: None)
        chosen = choose(current)
        if chosen is None:
            return current
        if write is not None:
            try:
                write(transaction)
            except BaseException:
                with suppress(RequestFailedError):
                    transaction.abort()  # readers wait for it
                raise
        self.set_in(transaction, chosen)
        transaction.commit()
        return chosen

    def _parts(self, text: str) -> Iterator[tuple[str, str]]:
        count = max(1, -(-len(text) // _PART))
        yield self._group, f"{count} {text[:_PART]}"
        for number in range(1, count):
            yield f"{self._group}.{number}", text[number * _PART : (number + 1) * _PART]

    def _fetch(self, group: str, retries: Retries) -> MarkValue | None:
        """`_UnsettledError` if a change stays under way."""
        requests = CoordinatorRequests(self._cluster, GROUP, group, patience=self._cluster.config.delivery_timeout)
        address = requests.locate()
        if (self._cluster.at(address).version(ApiKey.OFFSET_FETCH) or 0) < _STABLE_FROM:
            raise RequestFailedError(f"broker {address} cannot read stable offsets, which needs Kafka 2.5 or later")
        topics = [{"name": self._place.topic, "partition_indexes": [self._place.partition]}]
        asked = {"group_id": group, "member_id": None, "member_epoch": -1, "topics": topics}
        while True:
            answer = requests.ask(
                ApiKey.OFFSET_FETCH,
                {**asked, "groups": [asked], "require_stable": True},
                codes=_codes,
                most=_WITH_NAMES,
                busy=_NOT_BUSY,
            )
            bad = _codes(answer) - {ErrorCode.NONE}
            if bad != {ErrorCode.UNSTABLE_OFFSET_COMMIT}:
                break
            try:
                retries.wait("", is_busy=True)
            except RequestFailedError:
                raise _UnsettledError(f"group {group}: its mark does not become stable") from None
        if bad:
            raise RequestFailedError(f"group {group}: OffsetFetch: {describe_code(min(bad))}")
        for topic in _of_group(answer).topics:
            for one in topic.partitions:
                if one.committed_offset != _NONE:
                    return MarkValue(one.committed_offset, one.metadata or "1 ")
        return None


def _of_group(answer: Message) -> Message:
    """Before version 8 the answer is about one group."""
    return answer.groups[0] if answer.groups else answer


def _codes(answer: Message) -> set[int]:
    group = _of_group(answer)
    return {group.error_code} | {one.error_code for topic in group.topics for one in topic.partitions}
