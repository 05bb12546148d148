"""The topics of the cluster, as a consumer group sees them (``CoordinatorMetadataImage``). Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple, Protocol
from uuid import UUID


class ImageTopic(NamedTuple):
    """A topic. ``racks`` has one item for each partition: the known racks of its replicas."""

    name: str
    topic_id: UUID
    racks: tuple[tuple[str, ...], ...]

    @property
    def partition_count(self) -> int:
        return len(self.racks)


class TopicImage(Protocol):
    """``version`` grows with every change, and ``created_version`` is the one of the last creation; both keep growing
    when the broker restarts."""

    @property
    def version(self) -> int: ...

    @property
    def created_version(self) -> int: ...

    @property
    def names(self) -> Collection[str]: ...

    def find(self, topic: str | UUID) -> ImageTopic | None:
        """By name or id."""

    def hash_of(self, names: Iterable[str]) -> int:
        """The hash of those of the topics that exist (`seglog.coordinators.consumer.metadata_hash`)."""
