"""Brokers, partitions and groups over time. One thread asks them while a page looks, and never otherwise.

A round asks what `seglog cluster status` and `seglog groups describe` ask. The pause after it is twenty times as long
as the round took, between 2 s and 20 s: whatever the number of pages, brokers answer one round at a time, and are left
alone for most of it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from seglog.cli.cluster.requests import ClusterOptions, ClusterRequests
from seglog.cli.cluster.status import look_at_brokers, status_document
from seglog.cli.wire.clients import Cluster
from seglog.cli.wire.groups import (
    GroupPosition,
    committed_offsets,
    describe,
    group_document,
    listed_groups,
    positions,
    state_of,
)
from seglog.cluster.health import BrokerStatus, ClusterStatus, HealthFinding, PartitionStatus, judge
from seglog.cluster.reassignment_plan import Place
from seglog.core.clock import Clock
from seglog.core.errors import RequestFailedError, SeglogError
from seglog.core.topic_names import INTERNAL_TOPICS

if TYPE_CHECKING:
    from seglog.client.admin import GroupListing

_LEAST_PAUSE: Final = 2.0
_LONGEST_PAUSE: Final = 20.0
_SHARE: Final = 20
_WATCHED_FOR: Final = 30.0
"""Seconds after a page's last question in which samples are still taken."""
_SAMPLES: Final = 900
_EVENTS: Final = 300
_GROUPS: Final = 50
"""Groups whose lag is asked for in each round, by name; the others are asked for when they are looked at."""
_LISTED_PARTITIONS: Final = 500


class GroupLag(NamedTuple):
    """``lag`` counts to the high watermarks, ``readable`` to the last stable offsets; None if nothing is committed."""

    state: str
    members: int
    lag: int | None
    readable: int | None


class Sample(NamedTuple):
    """``records``: a second, since the sample before; None in the first one."""

    at: int
    records: float | None
    bytes: float | None
    groups: Mapping[str, GroupLag]


class Event(NamedTuple):
    """A change between two samples."""

    at: int
    kind: str
    text: str


class Live:
    """Use `start` and `stop`; questions may come from any thread."""

    def __init__(self, cluster: Cluster, where: ClusterOptions, clock: Clock) -> None:
        self._cluster = cluster
        self._where = where
        self._requests: ClusterRequests | None = None  # guarded by _looking
        self._looking = threading.Lock()
        self._clock = clock
        self._lock = threading.Lock()
        self._samples: deque[Sample] = deque(maxlen=_SAMPLES)  # guarded by _lock
        self._events: deque[Event] = deque(maxlen=_EVENTS)  # guarded by _lock
        self._seen: tuple[float, ClusterStatus, list[HealthFinding]] | None = None  # guarded by _lock
        self._problem: str | None = None  # guarded by _lock
        self._watched = -_WATCHED_FOR  # guarded by _lock
        self._rounds = 0  # guarded by _lock
        self._sampled = threading.Condition(self._lock)
        self._asked = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="console-samples", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._asked.set()
        self._thread.join()

    # The thread

    def _run(self) -> None:
        import seglog.client.cluster  # slow: it loads the protocol's schema, while no page waits for it yet

        del seglog
        while not self._over.is_set():
            self._asked.clear()
            with self._lock:
                wanted = self._clock.monotonic() - self._watched < _WATCHED_FOR
            if not wanted:
                self._asked.wait()
                continue
            began = self._clock.monotonic()
            problem = None
            try:
                self._sample(began)
            except SeglogError as error:
                problem = str(error)
            with self._lock:
                if problem is not None and problem != self._problem:
                    self._events.append(Event(self._clock.now_ms(), "problem", problem))
                self._problem = problem
                self._rounds += 1
                self._sampled.notify_all()
            self._over.wait(min(max(_LEAST_PAUSE, _SHARE * (self._clock.monotonic() - began)), _LONGEST_PAUSE))

    def _sample(self, began: float) -> None:
        seen = self.look()
        groups = self._groups()
        at = self._clock.now_ms()
        with self._lock:
            before = self._seen
            records = size = None
            if before is not None and began > before[0]:
                seconds = began - before[0]
                records = _growth(_ends(before[1]), _ends(seen)) / seconds
                size = _growth(_sizes(before[1]), _sizes(seen)) / seconds
                self._events += [Event(at, kind, text) for kind, text in changes(before[1], seen)]
                self._events += _rebalances(at, self._samples[-1].groups if self._samples else {}, groups)
            self._seen = (began, seen, judge(seen))
            self._samples.append(Sample(at, records, size, groups))

    def look(self) -> ClusterStatus:
        """As `seglog cluster status`; with settings of which only the client library knows, as far as that tells."""
        if self._cluster.has_own_client:
            with self._looking:
                if self._requests is None:
                    self._requests = self._where.requests()
                return self._requests.once(look_at_brokers)
        with self._cluster.errors("cluster"):
            found = self._cluster.admin.list_topics(timeout=self._cluster.timeout)
        partitions = [
            PartitionStatus(
                topic=name,
                number=number,
                replicas=tuple(one.replicas),
                isr=tuple(one.isrs),
                leader=one.leader if one.leader >= 0 else None,
            )
            for name, topic in sorted(found.topics.items())
            for number, one in sorted(topic.partitions.items())
        ]
        ends = self._cluster.ends([one.place for one in partitions if one.leader is not None])
        return ClusterStatus(
            cluster_id=found.cluster_id or "",
            controller=found.controller_id if found.controller_id >= 0 else None,
            brokers={
                node: BrokerStatus(node_id=node, listeners={"": f"{one.host}:{one.port}"})
                for node, one in found.brokers.items()
            },
            partitions=tuple(
                replace(one, ends={one.leader: ends[one.place]}) if one.leader is not None else one
                for one in partitions
            ),
        )

    def _groups(self) -> dict[str, GroupLag]:
        found = listed_groups(self._cluster)[:_GROUPS]
        return {one.group: group_lag(self._cluster, one) for one in found}

    # Questions

    def _watch(self) -> None:
        """Ask for samples, and wait for the first one."""
        with self._lock:
            self._watched = self._clock.monotonic()
            rounds = self._rounds
            self._asked.set()
            if self._seen is None:
                self._sampled.wait_for(lambda: self._rounds > rounds or self._over.is_set(), self._cluster.timeout + 5)

    def status(self, text: str, first: int, count: int) -> dict[str, Any]:
        """The document of `seglog cluster status --json`, with a page of its partitions, unhealthy ones first."""
        self._watch()
        with self._lock:
            seen, problem = self._seen, self._problem
        if seen is None:
            raise RequestFailedError(problem or "no broker has answered yet")
        _, status, findings = seen
        return {**status_page(status, findings, text, first, count), "problem": problem}

    def history(self, since: int) -> dict[str, Any]:
        """Samples and events after ``since``, in ms since 1970."""
        self._watch()
        with self._lock:
            samples = [one for one in self._samples if one.at > since]
            events = [one for one in self._events if one.at > since]
            problem = self._problem
        return {
            "now": self._clock.now_ms(),
            "problem": problem,
            "samples": [
                {
                    "at": one.at,
                    "records": one.records,
                    "bytes": one.bytes,
                    "groups": {name: group._asdict() for name, group in one.groups.items()},
                }
                for one in samples
            ],
            "events": [one._asdict() for one in events],
        }

    def group(self, name: str) -> dict[str, Any]:
        """The document of `seglog groups describe --json`, with the readable lag and the members of each partition."""
        described = describe(self._cluster, name)
        committed = committed_offsets(self._cluster, name)
        if described is None or (state_of(described) == "Dead" and not committed):
            raise RequestFailedError(f"group {name} does not exist")
        found = positions(self._cluster, described, committed)
        readable = {
            (one.topic, one.partition): one.lag
            for one in positions(self._cluster, described, committed, read_committed=True)
        }
        epochs = self._cluster.consumer_group(name)
        document: dict[str, Any] = group_document(described, epochs, found)
        for row in document["partitions"]:
            row["readableLag"] = readable.get((row["topic"], row["partition"]))
        return {**document, "lag": total_lag(found)}


def status_page(
    status: ClusterStatus, findings: list[HealthFinding], text: str, first: int, count: int
) -> dict[str, Any]:
    """The document of `seglog cluster status --json`, with a page of its partitions, unhealthy ones first."""
    worst = {place for finding in findings for place in finding.places}
    wanted = [one for one in status.partitions if text.lower() in f"{one.topic}-{one.number}".lower()]
    wanted.sort(key=lambda one: (one.place not in worst, one.topic in INTERNAL_TOPICS))
    shown = replace(status, partitions=tuple(wanted[first : first + min(count, _LISTED_PARTITIONS)]))
    leads: dict[int, int] = {}
    replicas: dict[int, int] = {}
    in_sync: dict[int, int] = {}
    sizes: dict[int, int] = {}
    for one in status.partitions:
        if one.leader is not None:
            leads[one.leader] = leads.get(one.leader, 0) + 1
        for node in one.replicas:
            replicas[node] = replicas.get(node, 0) + 1
            in_sync[node] = in_sync.get(node, 0) + (node in one.isr)
            sizes[node] = sizes.get(node, 0) + one.sizes.get(node, 0)
    document = status_document(shown, findings)
    for broker in document["brokers"]:
        node = broker["node"]
        broker |= {
            "leads": leads.get(node, 0),
            "replicas": replicas.get(node, 0),
            "inSync": in_sync.get(node, 0),
            "size": sizes.get(node, 0),
        }
    for finding in document["findings"]:
        finding["partitions"] = finding["partitions"][:20]
    return {**document, "total": len(wanted), "first": first}


def group_lag(cluster: Cluster, group: GroupListing) -> GroupLag:
    """Members and lags of a listed group; without them if it is of another protocol, or gone meanwhile."""
    lag = readable = None
    members = 0
    with suppress(RequestFailedError):
        described = describe(cluster, group.group)
        members = 0 if described is None else len(described.members)
        committed = committed_offsets(cluster, group.group)
        lag = total_lag(positions(cluster, described, committed))
        readable = total_lag(positions(cluster, described, committed, read_committed=True))
    return GroupLag(group.state, members, lag, readable)


def total_lag(found: list[GroupPosition]) -> int | None:
    """
    >>> total_lag([GroupPosition("t", 0, 3, 10, None), GroupPosition("t", 1, None, 5, None)]), total_lag([])
    (7, None)
    """
    lags = [one.lag for one in found if one.lag is not None]
    return sum(lags) if lags else None


def changes(before: ClusterStatus, after: ClusterStatus) -> Iterator[tuple[str, str]]:
    """Elections, changes of the ISR, and brokers that came or left, as kind and text."""
    for node in sorted(set(before.brokers) - set(after.brokers)):
        yield "left", f"broker {node} left"
    for node in sorted(set(after.brokers) - set(before.brokers)):
        yield "came", f"broker {node} came"
    known: dict[Place, PartitionStatus] = {one.place: one for one in before.partitions}
    for one in after.partitions:
        old = known.get(one.place)
        name = f"{one.topic}-{one.number}"
        if old is None:
            continue
        if old.leader != one.leader:
            who = "no leader" if one.leader is None else f"leader {one.leader}"
            epoch = "" if one.leader_epoch is None else f", epoch {one.leader_epoch}"
            yield "election", f"{name}: {who} instead of {'none' if old.leader is None else old.leader}{epoch}"
        if set(old.isr) != set(one.isr):
            kind = "shrink" if len(one.isr) < len(old.isr) else "expand"
            yield kind, f"{name}: in sync {', '.join(map(str, one.isr)) or 'none'}"


def _rebalances(at: int, before: Mapping[str, GroupLag], after: Mapping[str, GroupLag]) -> list[Event]:
    return [
        Event(at, "group", f"group {name}: {old.state}, {old.members} members → {one.state}, {one.members} members")
        for name, one in after.items()
        if (old := before.get(name)) is not None and (old.state, old.members) != (one.state, one.members)
    ]


def _ends(seen: ClusterStatus) -> dict[Place, int]:
    return {
        one.place: one.ends[one.leader] for one in seen.partitions if one.leader is not None and one.leader in one.ends
    }


def _sizes(seen: ClusterStatus) -> dict[Place, int]:
    return {
        one.place: one.sizes[one.leader]
        for one in seen.partitions
        if one.leader is not None and one.leader in one.sizes
    }


def _growth(before: Mapping[Place, int], after: Mapping[Place, int]) -> int:
    """What was added to partitions that both know. Retention takes bytes, and a truncation offsets: neither counts."""
    return sum(max(end - before[place], 0) for place, end in after.items() if place in before)
