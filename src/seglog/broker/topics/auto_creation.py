"""Topics that Metadata requests create (``auto.create.topics.enable``, Kafka's ``AutoTopicCreationManager``).

Whoever can send a request can name thousands of new topics in it, so a request creates only some of them, and all
requests together have only some in flight. The others get UNKNOWN_TOPIC_OR_PARTITION, as in Kafka while it creates
them: clients ask again soon, and then the next ones are created.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from seglog.broker.requests import ApiError, Charge, failure
from seglog.broker.topics.topic_changes import TopicChanges, TopicWish
from seglog.broker.topics.topics import Topic, Topics
from seglog.core.broker_config import BrokerConfig
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import SeglogError, TopicExistsError
from seglog.core.topic_names import INTERNAL_TOPICS

MAX_TOPICS_PER_REQUEST: Final = 100
"""A tenth of a second of work."""
MAX_PARTITIONS_PER_REQUEST: Final = 1_000
"""One topic may have more, by ``num.partitions``."""
MAX_TOPICS_IN_FLIGHT: Final = 500
_FOR_LEADERS_SECONDS: Final = 1.0
"""How long a response waits until the topics that it created have leaders."""


class AutoCreation:
    """`create` is called with the names that a request has and the broker does not. ``config`` returns the current
    configuration."""

    def __init__(self, topics: Topics, changes: TopicChanges, config: Callable[[], BrokerConfig]) -> None:
        self._topics = topics
        self._changes = changes
        self._config = config
        self._in_flight: dict[str, asyncio.Future[int]] = {}
        """The error codes to be, by the names of the topics that are being created."""

    async def create(self, names: Sequence[str], charge: Charge | None = None) -> Mapping[str, int]:
        """Create topics, or wait while other requests create them; return the error codes of those that failed. Some
        may be neither there nor failed then, such as those that the client's quota does not allow yet (``charge``)."""
        theirs = {name: self._in_flight[name] for name in names if name in self._in_flight}
        refused = await self._create_own(self._chosen((name for name in names if name not in theirs), charge))
        if theirs:
            await asyncio.wait(theirs.values(), timeout=_FOR_LEADERS_SECONDS)
        return {**refused, **{name: code for name, one in theirs.items() if one.done() and (code := one.result())}}

    def _chosen(self, names: Iterable[str], charge: Charge | None) -> list[str]:
        """Those that are created now. Coordinators create the internal topics."""
        partitions = self._config().directory.num_partitions
        room = min(
            MAX_TOPICS_PER_REQUEST,
            MAX_TOPICS_IN_FLIGHT - len(self._in_flight),
            max(MAX_PARTITIONS_PER_REQUEST // partitions, 1),
        )
        found: dict[str, None] = {}
        for name in names:
            if len(found) >= room:
                break
            if name in INTERNAL_TOPICS or name in self._topics.by_name or name in found:
                continue
            try:
                if charge is not None:
                    charge.mutated(partitions, strict=True)
            except ApiError:
                break
            found[name] = None
        return list(found)

    async def _create_own(self, names: Sequence[str]) -> Mapping[str, int]:
        if not names:
            return {}
        loop = asyncio.get_running_loop()
        flights = {name: loop.create_future() for name in names}
        self._in_flight.update(flights)
        refused: dict[str, int] = dict.fromkeys(names, int(ErrorCode.REQUEST_TIMED_OUT))
        try:
            refused = await self._create(names)
        finally:
            for name, one in flights.items():
                del self._in_flight[name]
                one.set_result(refused.get(name, 0))
        return refused

    async def _create(self, names: Sequence[str]) -> dict[str, int]:
        config = self._config()
        partitions, factor = config.directory.num_partitions, config.default_replication_factor
        refused: dict[str, int] = {}
        wanted: list[TopicWish] = []
        made: list[Topic] = []
        for name in names:
            try:
                wanted.append(TopicWish(name, self._changes.place(partitions, factor), {}))
            except SeglogError as error:
                refused[name] = failure(error)["error_code"]
        for one, outcome in zip(wanted, await self._changes.create_all(wanted), strict=True):
            if isinstance(outcome, Topic):
                made.append(outcome)
            elif not (isinstance(outcome, TopicExistsError) and one.name in self._topics.by_name):
                refused[one.name] = failure(outcome)["error_code"]
        await self._changes.settled(made, _FOR_LEADERS_SECONDS)
        return refused
