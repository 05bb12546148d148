"""A few topics on both brokers, and what clients may ask of them: to write, to read, where they are.

`LogWorld.step` draws one request and holds the answers against each other; at the end the files must be the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from seglog.protocol.apis import APIS, ApiKey
from tests.sequences.batches import START_MS, Batches
from tests.sequences.both import UNKNOWN_ID, UNKNOWN_SESSION, Both, Ref

CONFIGS: Final[Mapping[str, Mapping[str, str]]] = {
    "plain": {},
    "small": {"max.message.bytes": "2000"},
    # In Kafka a duplicate or one out of order may roll a segment (docs/differences.md): here are none of these.
    "segments": {"internal.segment.bytes": "16000", "index.interval.bytes": "500", "segment.index.bytes": "4000"},
    "compacted": {"cleanup.policy": "compact", "min.compaction.lag.ms": "9000000000000"},
    "recent": {"message.timestamp.before.max.ms": "3600000"},
    "stamped": {"message.timestamp.type": "LogAppendTime"},
    "gzip": {"compression.type": "gzip"},
}
"""Topics and their configurations. Bytes of the last two are not compared: times and compressors are their brokers'."""
OWN_BYTES: Final = frozenset({"stamped", "gzip"})
PARTITIONS: Final = 2
ANSWERED_OTHERWISE: Final = frozenset({"codec 5", "codec 7"})
"""Kafka answers UNKNOWN_SERVER_ERROR to a codec that it does not know, ours UNSUPPORTED_COMPRESSION_TYPE."""
_IDS_FROM: Final = {ApiKey.PRODUCE: 13, ApiKey.FETCH: 13}
_UNKNOWN: Final = "nowhere"
_MAX: Final = 2**31 - 1


def some_version(rng: random.Random, key: ApiKey, *, at_least: int = 0) -> int:
    """Any of those that are answered."""
    api = APIS[key]
    return rng.randint(max(api.low, api.served, at_least), api.high)


class LogWorld:
    """``tag`` makes the names of this world its own; producers' ids are above all that a broker gives out."""

    def __init__(self, both: Both, rng: random.Random, tag: str, kinds: Iterable[str] = CONFIGS) -> None:
        self.both = both
        self.rng = rng
        self.names = {f"{tag}-{kind}": kind for kind in kinds}
        first = (1 << 40) + rng.randrange(1 << 30)
        self.batches = Batches(rng, range(first, first + 3))
        self.ends: dict[tuple[str, int], int] = {}
        self.sessions: list[Session] = []
        self._create()

    def _create(self) -> None:
        self.both.ask(
            ApiKey.CREATE_TOPICS,
            4,  # says nothing of the configurations, of which ours have one more
            topics=[
                {
                    "name": name,
                    "num_partitions": PARTITIONS,
                    "replication_factor": 1,
                    "configs": [{"name": key, "value": value} for key, value in CONFIGS[kind].items()],
                }
                for name, kind in self.names.items()
            ],
            timeout=30_000,
            validate_only=False,
        )
        found = self.both.ask(ApiKey.METADATA, topics=[{"name": name} for name in self.names], eventually=True)
        for side, answer in zip(self.both.sides, found, strict=True):
            for topic in answer.topics:
                side.learn(Ref(topic.name), topic.topic_id)
        everywhere = [
            {"name": name, "partitions": [{"partition_index": n, "timestamp": -1} for n in range(PARTITIONS)]}
            for name in self.names
        ]
        self.both.ask(ApiKey.LIST_OFFSETS, 4, eventually=True, replica_id=-1, isolation_level=0, topics=everywhere)

    def starts(self) -> dict[tuple[str, int], int]:
        """Where the partitions begin, of those whose files are compared."""
        asked = [
            {"name": name, "partitions": [{"partition_index": n, "timestamp": -2} for n in range(PARTITIONS)]}
            for name, kind in self.names.items()
            if kind not in OWN_BYTES
        ]
        found = self.both.ask(ApiKey.LIST_OFFSETS, 4, replica_id=-1, isolation_level=0, topics=asked).real
        return {(topic.name, one.partition_index): one.offset for topic in found.topics for one in topic.partitions}

    def step(self) -> None:
        """One request, of the kinds that there are."""
        chosen = self.rng.choices(list(_STEPS), list(_STEPS.values()))[0]
        chosen(self)

    # Drawing

    def some_name(self, *, known: float = 0.97) -> str:
        return self.rng.choice(list(self.names)) if self.rng.random() < known else _UNKNOWN

    def some_partition(self) -> int:
        return self.rng.randrange(PARTITIONS) if self.rng.random() < 0.96 else self.rng.choice([PARTITIONS, -1])

    def some_version(self, key: ApiKey) -> int:
        return some_version(self.rng, key)

    def some_offset(self, name: str, partition: int) -> int:
        end = self.ends.get((name, partition), 0)
        if self.rng.random() < 0.85:
            return self.rng.randint(0, end)
        return self.rng.choice([-1, -2, end + 1, end + 100, 0])

    def some_epoch(self) -> int:
        return self.rng.choices([-1, 0, 1, 7], [6, 3, 1, 1])[0]

    def called(self, key: ApiKey, version: int, name: str) -> dict[str, Any]:
        """A topic as the version names it."""
        if version < _IDS_FROM[key]:
            return {"name": name} if key is ApiKey.PRODUCE else {"topic": name}
        return {"topic_id": Ref(name) if name in self.names else UNKNOWN_ID}

    # Writing

    def produce(self) -> None:
        rng = self.rng
        version = self.some_version(ApiKey.PRODUCE)
        topics: dict[str, dict[int, bytes]] = {}
        listed: list[tuple[str, int]] = []
        for _ in range(rng.choices([1, 2, 4], [8, 2, 1])[0]):
            name, partition = self.some_name(), self.some_partition()
            if (name, partition) in listed and rng.random() < 0.7:
                continue
            listed.append((name, partition))
            topics.setdefault(name, {})[partition] = self._data(name, partition)
        self.send(version, topics, acks=rng.choices([-1, 1, 0, 2], [6, 3, 1, 0.2])[0])
        self._look_at_ends(topics)

    def send(self, version: int, topics: Mapping[str, Mapping[int, bytes]], *, acks: int = -1) -> None:
        contents: dict[str, Any] = {
            "acks": acks,
            "timeout": 10_000,
            "transactional_id": None,
            "topic_data": [
                {
                    **self.called(ApiKey.PRODUCE, version, name),
                    "partition_data": [
                        {"index": partition, "records": records} for partition, records in partitions.items()
                    ],
                }
                for name, partitions in topics.items()
            ],
        }
        if acks == 0:
            self.both.send(ApiKey.PRODUCE, version, **contents)
        else:
            self.both.ask(ApiKey.PRODUCE, version, **contents)

    def _data(self, name: str, partition: int) -> bytes:
        rng = self.rng
        chance = rng.random()
        if chance < 0.15:
            kind, data = self.batches.damaged()
            return self.batches.plain() if kind in ANSWERED_OTHERWISE else data
        if chance < 0.6:
            return self.batches.produced((name, partition), right=self.names.get(name) == "segments")
        keyed = True if self.names.get(name) == "compacted" and rng.random() < 0.8 else None
        return self.batches.plain(keyed=keyed)

    def _look_at_ends(self, topics: Mapping[str, Mapping[int, bytes]]) -> None:
        asked = [
            {"name": name, "partitions": [{"partition_index": number, "timestamp": -1} for number in partitions]}
            for name, partitions in topics.items()
            if name in self.names
        ]
        found = self.both.ask(ApiKey.LIST_OFFSETS, 4, replica_id=-1, isolation_level=0, topics=asked)
        for topic in found.real.topics:
            for partition in topic.partitions:
                if not partition.error_code:
                    self.ends[topic.name, partition.partition_index] = partition.offset

    def delete_records(self) -> None:
        name, partition = self.some_name(), self.some_partition()
        offset = self.some_offset(name, partition)
        self.both.ask(
            ApiKey.DELETE_RECORDS,
            self.some_version(ApiKey.DELETE_RECORDS),
            topics=[{"name": name, "partitions": [{"partition_index": partition, "offset": offset}]}],
            timeout=10_000,
        )

    # Where things are

    def list_offsets(self) -> None:
        rng = self.rng
        version = self.some_version(ApiKey.LIST_OFFSETS)
        asked = []
        for name in {self.some_name() for _ in range(rng.randint(1, 3))}:
            timestamp = rng.choice([-1, -2, -3, -4, -5, -6, 0, START_MS, self.batches.now - rng.randrange(20_000)])
            if self.names.get(name) == "stamped" and timestamp == -3:
                continue  # the answer is a time of its broker's
            asked.append(
                {
                    "name": name,
                    "partitions": [
                        {
                            "partition_index": self.some_partition(),
                            "timestamp": timestamp,
                            "current_leader_epoch": self.some_epoch(),
                        }
                    ],
                }
            )
        self.both.ask(ApiKey.LIST_OFFSETS, version, replica_id=-1, isolation_level=rng.randint(0, 1), topics=asked)

    def offset_for_leader_epoch(self) -> None:
        wanted = [
            {
                "partition": self.some_partition(),
                "current_leader_epoch": self.some_epoch(),
                "leader_epoch": self.rng.choice([-1, 0, 0, 1, 9]),
            }
        ]
        version = self.some_version(ApiKey.OFFSET_FOR_LEADER_EPOCH)
        topics = [{"topic": self.some_name(), "partitions": wanted}]
        self.both.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, replica_id=-1, topics=topics)

    def describe_producers(self) -> None:
        name = self.some_name()
        if self.names.get(name) == "stamped":
            return  # the producers' last timestamps are their broker's
        topics = [{"name": name, "partition_indexes": [self.some_partition()]}]
        self.both.ask(ApiKey.DESCRIBE_PRODUCERS, topics=topics)

    # Reading

    def fetch(self) -> None:
        """Without a session."""
        version = self.some_version(ApiKey.FETCH)
        wanted = self.wanted()
        self.both.ask(ApiKey.FETCH, version, **self.fetched(version, wanted))

    def wanted(self) -> dict[tuple[str, int], dict[str, int]]:
        rng = self.rng
        wanted = {}
        for _ in range(rng.choices([1, 2, 5], [3, 2, 1])[0]):
            name, partition = self.some_name(), self.some_partition()
            if self.names.get(name) == "gzip":
                continue  # sizes are those of its broker's compressor
            wanted[name, partition] = {
                "partition": partition,
                "fetch_offset": self.some_offset(name, partition),
                "partition_max_bytes": rng.choice([1, 50, 300, 5000, 1 << 20, 0]),
                "current_leader_epoch": self.some_epoch(),
                "last_fetched_epoch": rng.choices([-1, 0, 1, 5], [20, 3, 1, 1])[0],
            }
        return wanted

    def fetched(
        self,
        version: int,
        wanted: Mapping[tuple[str, int], Mapping[str, int]],
        forgotten: list[tuple[str, int]] | None = None,
        **session: object,
    ) -> dict[str, Any]:
        """The contents of a Fetch."""
        topics: dict[str, list[Mapping[str, int]]] = {}
        for (name, _), partition in wanted.items():
            topics.setdefault(name, []).append(partition)
        return {
            "max_wait": self.rng.choice([0, 0, 1]),
            "min_bytes": self.rng.choice([0, 1, 1, 500]),
            "max_bytes": self.rng.choice([1, 300, 5000, _MAX, _MAX]),
            "isolation_level": self.rng.randint(0, 1),
            "replica_id": -1,
            "rack_id": "",
            "topics": [
                {**self.called(ApiKey.FETCH, version, name), "partitions": partitions}
                for name, partitions in topics.items()
            ],
            "forgotten_topics_data": [
                {**self.called(ApiKey.FETCH, version, name), "partitions": [number]} for name, number in forgotten or ()
            ],
            **session,
        }

    def fetch_in_session(self) -> None:
        """Begin, continue or end a session, or send an invalid request for one."""
        rng = self.rng
        if not self.sessions or rng.random() < 0.15:
            self._begin_session()
            return
        session = rng.choice(self.sessions)
        session.wanted |= (new := self.wanted() if rng.random() < 0.5 else {})
        gone = [key for key in session.wanted if rng.random() < 0.1 and key not in new]
        for key in gone:
            del session.wanted[key]
        ref: Ref | int = session.ref
        epoch, chance = session.epoch, rng.random()
        if chance < 0.07:
            epoch = rng.choice([epoch - 1, epoch + 1, epoch + 5])
        elif chance < 0.1:
            ref = UNKNOWN_SESSION
        elif chance < 0.14:
            epoch = -1
        contents = self.fetched(session.version, new, gone, session_id=ref, session_epoch=epoch)
        answer = self.both.ask(ApiKey.FETCH, session.version, **contents).real
        if answer.error_code or epoch == -1:
            self.sessions.remove(session)
        else:
            session.epoch += 1

    def _begin_session(self) -> None:
        version = self.rng.randint(7, APIS[ApiKey.FETCH].high)
        session = Session(Ref(f"session {self.rng.random()}"), version, self.wanted())
        contents = self.fetched(version, session.wanted, session_id=0, session_epoch=0)
        answers = self.both.ask(ApiKey.FETCH, version, **contents)
        if answers.real.session_id:
            self.both.learn(session.ref, answers, "session_id")
            self.sessions.append(session)


class Session:
    """A client's state of its fetch session; ``epoch`` is that of the next request."""

    def __init__(self, ref: Ref, version: int, wanted: dict[tuple[str, int], dict[str, int]]) -> None:
        self.ref = ref
        self.version = version
        self.wanted = wanted
        self.epoch = 1


_STEPS: Final[Mapping[Callable[[LogWorld], None], int]] = {
    LogWorld.produce: 40,
    LogWorld.fetch: 20,
    LogWorld.fetch_in_session: 20,
    LogWorld.list_offsets: 8,
    LogWorld.offset_for_leader_epoch: 3,
    LogWorld.describe_producers: 4,
    LogWorld.delete_records: 3,
}
