"""Who asks something of a simulated cluster, over the wire: producers, consumers, a group, and those who operate it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from random import Random
from typing import TYPE_CHECKING, Any, Final

from seglog.core.errors import AuthenticationFailedError
from seglog.protocol.apis import ApiKey
from seglog.protocol.message_reader import Message
from seglog.records import any_magic
from seglog.records.batch import entries
from seglog.records.record import NewRecord, encode_batch
from tests.kit.virtual_broker import PORT
from tests.kit.virtual_loop import VirtualLoop
from tests.simulation.cluster.contents import TOPIC
from tests.simulation.principals import log_in, login_of, renewal_of
from tests.simulation.wire import Channel, LostError, connect

if TYPE_CHECKING:
    from tests.simulation.cluster.cluster import Cluster
    from tests.simulation.cluster.host import Host

_WRITE_SECONDS: Final = 0.05
_READ_SECONDS: Final = 0.08
_ASK_SECONDS: Final = 0.06
_COMMIT_SECONDS: Final = 0.15
_PATIENCE_SECONDS: Final = 6.0
_LOGIN_SECONDS: Final = 3.0
EPOCH_MS: Final = 1_700_000_000_000
_AT_ONCE: Final = 20
_UNKNOWN: Final = {7, 20}
"""Codes that do not say whether a record stays: REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS_AFTER_APPEND."""
_PASSING: Final = {1, 3, 5, 6, 7, 14, 15, 16, 19, 20, 41, 56, 74, 75, 76, 100}


class Client:
    """A process with a connection to each broker that it asks."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.is_on = True
        self.loop = VirtualLoop(cluster.world, name)
        self.rng = Random(f"{cluster.seed} {name}")
        self.under_way = 0
        self.login = None if cluster.permissions is None else login_of("client")
        self._channels: dict[int, Channel] = {}

    async def ask(
        self,
        node_id: int,
        key: ApiKey,
        /,
        *,
        version: int | None = None,
        patience: float = _PATIENCE_SECONDS,
        **contents: object,
    ) -> Message:
        """Raises `LostError`, also after ``patience`` seconds; then the connection is at an end, too."""
        channel = await self.connected(node_id)
        try:
            async with asyncio.timeout(patience):
                return await channel.send(key, contents, version)
        except TimeoutError as error:
            self._channels.pop(node_id, None)
            self.give_up(channel)
            raise LostError from error

    async def connected(self, node_id: int) -> Channel:
        """Once its session is about to end, another connection is made: the old one may have requests under way."""
        channel = self._channels.get(node_id)
        if channel is None or not channel.is_open or self.world.now >= channel.renew_at:
            channel = await connect(self.loop, self.cluster.network, (f"n{node_id}", PORT), 1.0)
            await self.begin_session(node_id, channel)
            self._channels[node_id] = channel
        return channel

    async def begin_session(self, node_id: int, channel: Channel) -> None:
        lifetime = await self.log_in(node_id, channel)
        if lifetime is not None:
            channel.renew_at = self.world.now + renewal_of(lifetime, self.rng)

    async def log_in(self, node_id: int, channel: Channel) -> float | None:
        """By ``login``, if there is one. Returns the seconds until the session ends."""
        if self.login is None:
            return None
        try:
            return await log_in(channel, self.login, self.answer)
        except AuthenticationFailedError as error:
            raise AssertionError(f"{self.login.user} cannot log in to broker {node_id}: {error}") from error

    async def answer(self, channel: Channel, future: asyncio.Future[Message]) -> Message:
        try:
            async with asyncio.timeout(_LOGIN_SECONDS):
                return await future
        except TimeoutError as error:
            channel.close()
            raise LostError from error

    def give_up(self, channel: Channel) -> None:
        """An answer takes too long."""
        channel.close()

    def every(self, seconds: float, act: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin ``act`` again and again, whether the one before has ended or not."""
        if self.is_on and self.under_way < _AT_ONCE:
            self.loop.create_task(self._do(act()))
        self.loop.call_later(self.rng.random() * 2 * seconds, self.every, seconds, act)

    async def _do(self, work: Coroutine[Any, Any, None]) -> None:
        self.under_way += 1
        try:
            await work
        except LostError:
            return
        finally:
            self.under_way -= 1

    def any_host(self) -> Host:
        return self.rng.choice(list(self.cluster.hosts.values()))

    def target(self, number: int) -> Host:
        """Whoever a client takes for the leader: mostly who it is, sometimes anyone."""
        state = self.cluster.history.states.get(number)
        if state is not None and state.leader >= 0 and self.rng.random() < 0.9:
            return self.cluster.hosts[state.leader]
        return self.any_host()

    def number(self) -> int:
        return self.rng.randrange(self.cluster.scenario.partitions)

    def records(self, count: int, time: int) -> tuple[list[int], bytes]:
        """New unique values, and a batch of them."""
        history = self.cluster.history
        values = [history.attempts + 1 + index for index in range(count)]
        history.attempts += count
        return values, bytes(encode_batch([NewRecord(b"%d" % value, timestamp=time) for value in values]))

    async def produce(
        self, host: Host, number: int, data: bytes, acks: int, *, patience: float = _PATIENCE_SECONDS
    ) -> Message:
        """The answer for the partition."""
        partitions = [{"index": number, "records": data}]
        answer = await self.ask(
            host.node_id,
            ApiKey.PRODUCE,
            patience=patience,
            transactional_id=None,
            acks=acks,
            timeout=5_000,
            topic_data=[{"name": TOPIC, "partition_data": partitions}],
        )
        found: Message = answer.responses[0].partition_responses[0]
        return found


class Clients(Client):
    """A producer with acks=all that sends each value once, and a consumer; both guess who leads."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster, "client")
        self.outcomes: Counter[str] = Counter()
        self.positions = dict.fromkeys(range(cluster.scenario.partitions), 0)
        self.every(_WRITE_SECONDS, self._write)
        self.every(_READ_SECONDS, self._read)

    async def _write(self) -> None:
        number, rng = self.number(), self.rng
        time = EPOCH_MS + self.cluster.now_ms + rng.choice((0, 0, 0, 0, -5_000, 5_000, 3_600_000))
        values, data = self.records(rng.choice((1, 1, 1, 2, 3)), time)
        outcome = "unknown"
        try:
            answer = await self.produce(self.target(number), number, data, -1)
            code = answer.error_code
            assert code == 0 or code in _PASSING, f"a producer is told {code}: {answer.error_message}"
            outcome = "ok" if code == 0 else "unknown" if code in _UNKNOWN else "failed"
            if code == 0:
                for index, value in enumerate(values):
                    self.cluster.history.acknowledge(number, answer.base_offset + index, value)
        finally:
            self.outcomes[outcome] += len(values)

    async def _read(self) -> None:
        number = self.number()
        host, history = self.target(number), self.cluster.history
        start = self.positions[number] if self.rng.random() < 0.9 else 0
        epoch, unclean = self.cluster.rules.agreed(host, number), history.unclean_epoch[number]
        partition = {"partition": number, "fetch_offset": start, "partition_max_bytes": 1_000}
        answer = await self.ask(
            host.node_id,
            ApiKey.FETCH,
            max_wait=0,
            min_bytes=0,
            max_bytes=10_000,
            session_id=0,
            session_epoch=-1,
            topics=[{"topic": TOPIC, "partitions": [partition]}],
            forgotten_topics_data=[],
        )
        one = answer.responses[0].partitions[0]
        assert one.error_code == 0 or one.error_code in _PASSING, f"a consumer is told {one.error_code}"
        found = []
        data = memoryview(one.records or b"")
        for entry in entries(data):
            found += [
                (one.offset, int(one.value or b"")) for one in any_magic.decode(data, entry) if one.offset >= start
            ]
        if history.unclean_epoch[number] == unclean:
            history.consumed(number, epoch, one.high_watermark, found)
        end = found[-1][0] + 1 if found else one.log_start_offset
        self.positions[number] = max(self.positions[number], end)


class Doubter(Client):
    """Asks brokers whose session is in doubt: to write with acks=1, and what a group has committed."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster, "doubter")
        self.committed, self.begun = -1, 0
        self.unanswered: set[int] = set()
        """Commits that may be made yet, after later ones."""
        self.asked_in_doubt = 0
        """How often a coordinator in doubt has said what is committed."""
        self.every(_ASK_SECONDS, self._ask)
        if cluster.scenario.groups:
            self.every(_COMMIT_SECONDS, self.commit)

    async def _ask(self) -> None:
        for host in self.cluster.hosts.values():
            if not host.is_in_doubt:
                continue
            if self.cluster.scenario.groups and self.rng.random() < 0.5:
                await self.fetch(host)
            elif self.rng.random() < 0.3:
                values, data = self.records(1, EPOCH_MS + self.cluster.now_ms)
                self.cluster.history.in_doubt.update(values)
                await self.produce(host, self.number(), data, 1)

    async def commit(self) -> None:
        await self._find()
        self.begun += 1
        number = self.begun
        self.unanswered.add(number)
        partition = {"partition_index": 0, "committed_offset": number, "committed_metadata": ""}
        answer = await self.ask(
            self._coordinator().node_id,
            ApiKey.OFFSET_COMMIT,
            group_id="g",
            generation_id_or_member_epoch=-1,
            member_id="",
            group_instance_id=None,
            topics=[{"name": TOPIC, "partitions": [partition]}],
        )
        if answer.topics[0].partitions[0].error_code == 0:
            self.committed = max(self.committed, number)
            self.unanswered.discard(number)

    async def _find(self) -> None:
        """This makes the topic of offsets, too."""
        if self.cluster.offsets_state is None:
            await self.ask(self.any_host().node_id, ApiKey.FIND_COORDINATOR, key_type=0, coordinator_keys=["g"])

    def _coordinator(self) -> Host:
        state = self.cluster.offsets_state
        if state is not None and state.leader >= 0 and self.rng.random() < 0.9:
            return self.cluster.hosts[state.leader]
        return self.any_host()

    async def fetch(self, host: Host) -> None:
        """P17: what was acknowledged before is what a coordinator in doubt says, or something later."""
        least = self.committed
        wanted = [{"name": TOPIC, "partition_indexes": [0]}]
        groups = [{"group_id": "g", "member_id": None, "member_epoch": -1, "topics": wanted}]
        answer = await self.ask(host.node_id, ApiKey.OFFSET_FETCH, groups=groups, require_stable=True)
        group = answer.groups[0]
        if group.error_code == 0 and group.topics and group.topics[0].partitions[0].error_code == 0:
            found = group.topics[0].partitions[0].committed_offset
            self.asked_in_doubt += 1
            is_late = found in self.unanswered
            assert found >= least or is_late, f"P17: {host.host} says that {found} is committed, and {least} was before"


class Operators(Client):
    """Changes by operators: they move replicas, elect preferred leaders, configure topics and delete records."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster, "operator")
        if self.login is not None:
            self.login = login_of("admin")
        self.done: Counter[str] = Counter()
        faults = cluster.faults
        self.loop.create_task(self._make_topic())
        for every, act in (
            (faults.reassign_every, self._reassign),
            (faults.prefer_every, self._prefer),
            (faults.configure_every, self._configure),
            (faults.delete_every, self._delete),
        ):
            if every:
                self.loop.call_later(1.0 + self.rng.random() * every / 1000, self.every, every / 1000, act)

    async def _make_topic(self) -> None:
        cluster, scenario = self.cluster, self.cluster.scenario
        assignments = [
            {"partition_index": number, "broker_ids": list(nodes)} for number, nodes in enumerate(scenario.assignment)
        ]
        config = topic_config(scenario.min_insync, unclean=scenario.unclean)
        topic = {
            "name": TOPIC,
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": assignments,
            "configs": [{"name": name, "value": value} for name, value in config.items()],
        }
        while cluster.topic is None:
            try:
                await self.ask(
                    self.any_host().node_id, ApiKey.CREATE_TOPICS, topics=[topic], timeout=1_000, validate_only=False
                )
            except LostError:
                await asyncio.sleep(0.02)

    async def _reassign(self) -> None:
        scenario, number = self.cluster.scenario, self.number()
        is_cancelled = self.rng.random() < 0.25
        target = None if is_cancelled else self.rng.sample(sorted(self.cluster.hosts), scenario.replicas)
        topics = [{"name": TOPIC, "partitions": [{"partition_index": number, "replicas": target}]}]
        self.world.note("reassign", number, target)
        answer = await self.ask(
            self.any_host().node_id, ApiKey.ALTER_PARTITION_REASSIGNMENTS, timeout=2_000, topics=topics
        )
        if answer.error_code == 0 and answer.responses[0].partitions[0].error_code == 0:
            self.done["cancel" if is_cancelled else "reassign"] += 1

    async def _prefer(self) -> None:
        number = self.number()
        wanted = [{"topic": TOPIC, "partitions": [number]}]
        self.world.note("prefer", number)
        await self.ask(
            self.any_host().node_id, ApiKey.ELECT_LEADERS, election_type=0, topic_partitions=wanted, timeout=2_000
        )
        self.done["prefer"] += 1

    async def _configure(self) -> None:
        cluster = self.cluster
        least = self.rng.randrange(1, cluster.scenario.replicas + 1)
        if least < cluster.min_insync and any(map(cluster.is_losing, cluster.hosts.values())):
            return
        self.world.note("configure", least)
        cluster.lowered.append((self.world.now + 2 * _PATIENCE_SECONDS, least))
        configs = [{"name": "min.insync.replicas", "config_operation": 0, "value": str(least)}]
        resource = {"resource_type": 2, "resource_name": TOPIC, "configs": configs}
        await self.ask(
            self.any_host().node_id, ApiKey.INCREMENTAL_ALTER_CONFIGS, resources=[resource], validate_only=False
        )
        self.done["configure"] += 1

    async def _delete(self) -> None:
        number = self.number()
        before = self.cluster.rules.committed[number] - self.rng.randrange(-3, 40)
        if before <= 0:
            return
        self.cluster.history.deletes(number, before)
        partitions = [{"partition_index": number, "offset": before}]
        await self.ask(
            self.target(number).node_id,
            ApiKey.DELETE_RECORDS,
            topics=[{"name": TOPIC, "partitions": partitions}],
            timeout=2_000,
        )
        self.done["delete records"] += 1


def topic_config(min_insync: int, *, unclean: bool) -> Mapping[str, str]:
    return {"min.insync.replicas": str(min_insync), "unclean.leader.election.enable": str(unclean).lower()}
