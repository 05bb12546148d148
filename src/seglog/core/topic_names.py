"""Names of internal topics, and names that collide: metrics do not distinguish ``.`` and ``_``, so Kafka has no two
topics that differ only in those (``Topic.hasCollision``)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTION_TOPIC: Final = "__transaction_state"
SHARE_TOPIC: Final = "__share_group_state"
METADATA_TOPIC: Final = "__cluster_metadata"
"""KRaft's: no client sees it as a topic."""
INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, TRANSACTION_TOPIC, SHARE_TOPIC})
"""Topics that coordinators write, Kafka's and ours (``Topic.java``)."""


class FlatNames:
    """Names of topics, found by the one form that all names that collide share.

    >>> names = FlatNames(["web.logs", "mail"])
    >>> names.others("web_logs"), names.others("web.logs"), names.others("mail")
    (['web.logs'], [], [])
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._by_flat: dict[str, set[str]] = {}
        for name in names:
            self.add(name)

    def add(self, name: str) -> None:
        if may_collide(name):
            self._by_flat.setdefault(_flat(name), set()).add(name)

    def discard(self, name: str) -> None:
        flat = _flat(name)
        there = self._by_flat.get(flat)
        if there is not None:
            there.discard(name)
            if not there:
                del self._by_flat[flat]

    def others(self, name: str) -> Collection[str]:
        """The other names here that collide with this one."""
        there = self._by_flat.get(_flat(name), ())
        return sorted(other for other in there if other != name)


def may_collide(name: str) -> bool:
    """Whether any other name could collide with this one.

    >>> [may_collide(name) for name in ("web-logs", "web.logs", "web_logs")]
    [False, True, True]
    """
    return "." in name or "_" in name


def _flat(name: str) -> str:
    return name.replace(".", "_")
