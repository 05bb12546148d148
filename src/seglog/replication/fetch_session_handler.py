"""The follower's end of a fetch session (KIP-227, ``FetchSessionHandler``). Pure.

The first request names every partition, later ones only those that have changed. A partition that an answer does not
name has no news, and costs nothing on either side. If the request named it, that is an answer too: the leader's last
positions still hold. When the two ends may differ, the session starts again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from seglog.core.errors import InvalidRequestError
from seglog.core.types import MAX_INT32
from seglog.protocol.replica_fetch import FetchResponse, RequestHead, WantedPartition, write_request
from seglog.replication.replica import ReplicaFetch

FULL: Final = 0
"""The epoch that asks for a new session."""
NO_SESSION: Final = 0
SESSION_ERRORS: Final = frozenset({70, 71, 106})
"""FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR: start a new session."""

PartitionKey = tuple[bytes, int]
"""A topic's id, as on the wire, and the partition's number."""


class FetchSessionHandler:
    """``asked`` is the last fetch of each partition, as the leader knows it; ``told`` the leader's last answer: high
    watermark and log start."""

    def __init__(self) -> None:
        self.asked: dict[PartitionKey, ReplicaFetch] = {}
        self.told: dict[PartitionKey, tuple[int, int]] = {}
        self._named: list[PartitionKey] = []
        self._doubted: set[PartitionKey] = set()
        self._session_id = NO_SESSION
        self._epoch = FULL

    @property
    def is_full(self) -> bool:
        """Whether the next request names every partition."""
        return self._epoch == FULL

    def has(self, key: PartitionKey, leader_epoch: int, offset: int) -> bool:
        """Whether the leader knows this fetch already."""
        asked = self.asked.get(key)
        return (
            asked is not None
            and (asked.leader_epoch, asked.offset) == (leader_epoch, offset)
            and key not in self._doubted
        )

    def doubt(self, key: PartitionKey) -> None:
        """The last answer was not applied: name the partition again even if the fetch is the same."""
        self._doubted.add(key)

    def restart(self) -> None:
        """Start a new session with the next request, which also closes the old one."""
        self._epoch = FULL

    def request(
        self,
        head: RequestHead,
        wanted: Iterable[tuple[PartitionKey, ReplicaFetch]],
        forgotten: Iterable[PartitionKey],
    ) -> bytes:
        """Return the next request: those of ``wanted`` that the leader does not know yet. ``head`` has no session
        fields."""
        asked = self.asked
        if self.is_full:
            asked.clear()
            self.told.clear()
            self._doubted.clear()
        self._named = []
        changed: dict[bytes, list[WantedPartition]] = {}
        gone: dict[bytes, list[int]] = {}
        for key, one in wanted:
            if asked.get(key) != one or key in self._doubted:
                self._doubted.discard(key)
                asked[key] = one
                self._named.append(key)
                topic_id, number = key
                partition = WantedPartition(
                    number, one.leader_epoch, one.offset, one.last_epoch, one.log_start_offset, one.max_bytes
                )
                changed.setdefault(topic_id, []).append(partition)
        for key in forgotten:
            self.told.pop(key, None)
            self._doubted.discard(key)
            if asked.pop(key, None) is not None:
                gone.setdefault(key[0], []).append(key[1])
        return write_request(head._replace(session_id=self._session_id, session_epoch=self._epoch), changed, gone)

    def answered(self, response: FetchResponse) -> list[PartitionKey]:
        """Apply the leader's answer. Return the partitions that the request named and the answer does not.

        Raises `InvalidRequestError` if it does not answer the request.
        """
        asked, told = self.asked, self.told
        answered = set()
        for topic_id, number, error, high_watermark, log_start_offset, _, _ in response.partitions:
            key = (topic_id, number)
            if key not in asked:
                raise InvalidRequestError(f"partition {number} of topic id {topic_id.hex()}, which was not requested")
            answered.add(key)
            if not error:
                told[key] = (high_watermark, log_start_offset)
        session_id = response.session_id
        if self.is_full:
            if len(answered) < len(asked):
                raise InvalidRequestError(f"{len(answered)} partitions, but {len(asked)} were requested")
            self._session_id = session_id
            # A leader without room for a session gets full requests.
            self._epoch = FULL if session_id == NO_SESSION else 1
            return []
        if session_id not in (self._session_id, NO_SESSION):
            raise InvalidRequestError(f"session {session_id}, but {self._session_id} was requested")
        if session_id == NO_SESSION:
            self._session_id, self._epoch = NO_SESSION, FULL
        else:
            self._epoch = 1 if self._epoch == MAX_INT32 else self._epoch + 1
        return [key for key in self._named if key not in answered]
