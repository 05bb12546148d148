"""Clients that come, stall, die, leave and change their protocols, against the promises to them.

The model knows no states, only answers. Generations rise. A generation has one leader, which alone sees all its
members, and one protocol, which all of them support. A member gets the assignment that the leader of that generation
gave it. A client outside of the current generation cannot commit. In the end, when all living clients work, they are
exactly the members. A restart at any time finds what was written and continues from there. What was not used for long
is deleted, and a restart does not bring it back.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from seglog.coordinators.classic.messages import Protocols
from seglog.coordinators.classic.state import GroupLimits, GroupState
from seglog.core.error_codes import ErrorCode
from tests.cases import case
from tests.coordinators.shard_driver import DELAY, GROUP, RETENTION, SESSION, ShardDriver

NAMES = ("range", "roundrobin", "sticky")
PROTOCOLS = st.lists(st.sampled_from(NAMES[1:]), unique=True, max_size=2).map(
    lambda names: tuple((name, name.encode()) for name in ("range", *names))
)
RESET = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}


@dataclass(eq=False)
class Client:
    """The state of one client. ``wants`` is the request that it sends next, or whose answer it waits for."""

    protocols: Protocols
    version: int
    instance: str | None = None
    member_id: str = ""
    generation: int = -1
    leads: list[str] = field(default_factory=list)
    assignment: bytes | None = None
    wants: str = "join"
    ticket: int | None = None
    is_dead: bool = False


class Groups(RuleBasedStateMachine):
    clients = Bundle("clients")

    @initialize(delay=st.sampled_from([0, DELAY]), max_size=st.sampled_from([3, 2**31 - 1]), holds=st.booleans())
    def begin(self, delay: int, max_size: int, holds: bool) -> None:
        case()
        self.driver = ShardDriver(GroupLimits(delay, max_size))
        self.driver.holds = holds
        self.all: list[Client] = []
        self.leaders: dict[int, str] = {}
        self.members: dict[int, frozenset[str]] = {}
        self.protocol: dict[int, str] = {}
        self.assigned: dict[tuple[int, str], bytes] = {}
        self.committed: int | None = None
        self.commits = 0
        self.last_generation = 0
        self.is_limited = max_size < 10

    # What happens

    @rule(target=clients, protocols=PROTOCOLS, version=st.sampled_from([0, 3, 4, 9]))
    def start(self, protocols: Protocols, version: int) -> Client:
        self.all.append(Client(protocols, version))
        return self.all[-1]

    @rule(target=clients, protocols=PROTOCOLS, version=st.sampled_from([5, 8, 9]), instance=st.sampled_from("ij"))
    def start_static(self, protocols: Protocols, version: int, instance: str) -> Client:
        """Start a static member, perhaps in place of a living one, which is then fenced."""
        self.all.append(Client(protocols, version, instance))
        return self.all[-1]

    @rule(client=clients)
    def die(self, client: Client) -> None:
        client.is_dead = True

    @rule(client=clients)
    def leave(self, client: Client) -> None:
        if client.is_dead or not client.member_id or client.instance is not None:
            return
        client.is_dead = True
        code = self.driver.leave(client.member_id)[0]
        assert code in (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID)

    @rule(client=clients, protocols=PROTOCOLS)
    def change_protocols(self, client: Client, protocols: Protocols) -> None:
        if client.ticket is None:
            client.protocols = protocols
            client.wants = "join"

    @rule()
    def restart(self) -> None:
        """The coordinator dies at any time, even during a rebalance; what was written counts."""
        self.driver.restart()
        group = self.driver.shard.classic(GROUP)
        written = self.last_generation = 0 if group is None else group.generation
        for seen in (self.protocol, self.members):
            for generation in [generation for generation in seen if generation > written]:
                del seen[generation]  # it was never written: there may be another one of that number
        for client in self.all:
            if client.ticket is not None or client.generation > written:
                client.ticket, client.wants, client.assignment = None, "join", None
                client.generation = min(client.generation, written)

    @rule(late=st.booleans(), retention_ms=st.sampled_from([0, RETENTION]))
    def expire(self, late: bool, retention_ms: int) -> None:
        """Offsets expire when their group has been empty for long, and with them the group; those of a group with
        members never."""
        group = self.driver.shard.classic(GROUP)
        was_empty = group is None or group.is_empty
        if late:
            self.driver.advance(RETENTION)
        group = self.driver.shard.classic(GROUP)
        is_empty = group is None or group.is_empty
        self.driver.expire(retention_ms)
        if self.committed is not None and self.driver.committed() is None:
            assert is_empty
            self.committed = None
        if late and was_empty and is_empty:  # else it has been empty for less than the retention
            again = self.driver.shard.classic(GROUP)
            assert again is None or again.members.pending or self.driver.holds
        if GROUP not in self.driver.shard.groups:
            self.last_generation = 0
            self.protocol.clear()
            self.members.clear()
            for client in self.all:
                if client.ticket is not None:  # an answer of the deleted group: its generations begin again
                    client.ticket, client.wants, client.assignment = None, "join", None

    @rule(milliseconds=st.sampled_from([0, 500, DELAY, SESSION // 2, SESSION, 6 * SESSION]))
    def time_goes_by(self, milliseconds: int) -> None:
        self.driver.advance(milliseconds)

    @rule()
    def high_watermark_comes(self) -> None:
        self.driver.commit_all()

    @rule(client=clients)
    def step(self, client: Client) -> None:
        """Let the client do its next step."""
        if client.is_dead:
            return
        if client.ticket is not None:
            self._read(client)
        elif client.wants == "join":
            client.leads = []
            client.assignment = None
            client.ticket = self.driver.start_join(
                client.member_id, instance=client.instance, protocols=client.protocols, version=client.version
            )
        elif client.wants == "sync":
            gives = {member: b"%d %s" % (client.generation, member.encode()) for member in client.leads}
            client.ticket = self.driver.start_sync(client.member_id, client.generation, gives, instance=client.instance)
        else:
            code = self.driver.heartbeat(client.member_id, client.generation, client.instance)
            self._told(client, code)

    @rule(rounds=st.integers(1, 6))
    def all_work(self, rounds: int) -> None:
        for _ in range(rounds):
            for client in self.all:
                self.step(client)
                self.step(client)
            self.driver.advance(DELAY // 2)

    @rule(client=clients)
    def commit(self, client: Client) -> None:
        if client.is_dead or client.generation < 0:
            return
        self.commits += 1
        code = self.driver.commit(client.member_id, client.generation, offset=self.commits, instance=client.instance)
        if code is ErrorCode.NONE:
            assert client.generation == self.driver.group.generation
            assert client.member_id in self.driver.group.members
            self.committed = self.commits
        else:
            assert code in {
                *RESET,
                ErrorCode.ILLEGAL_GENERATION,
                ErrorCode.REBALANCE_IN_PROGRESS,
                ErrorCode.GROUP_ID_NOT_FOUND,
            }

    # What the client makes of it

    def _told(self, client: Client, code: ErrorCode) -> None:
        if code is ErrorCode.NONE:
            return
        client.wants = "join"
        if code is ErrorCode.FENCED_INSTANCE_ID:
            client.is_dead = True
        elif code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.INCONSISTENT_GROUP_PROTOCOL):
            client.member_id, client.generation = "", -1
        elif code is ErrorCode.GROUP_MAX_SIZE_REACHED:
            assert self.is_limited
            client.is_dead = True
        elif code is ErrorCode.ILLEGAL_GENERATION:
            client.generation = -1
        else:
            assert code is ErrorCode.REBALANCE_IN_PROGRESS

    def _read(self, client: Client) -> None:
        answer = self.driver.answers.get(client.ticket)
        if answer is None:
            return
        ticket, client.ticket = client.ticket, None
        assert ticket is not None
        if client.wants == "sync":
            self._read_sync(client, ticket)
            return
        joined = self.driver.joined(ticket)
        if joined.code is ErrorCode.MEMBER_ID_REQUIRED:
            assert client.version >= 4
            assert client.instance is None
            assert not client.member_id
            client.member_id = joined.member_id
        elif joined.code is ErrorCode.NONE:
            self._read_join(client, ticket)
        else:
            self._told(client, joined.code)

    def _read_join(self, client: Client, ticket: int) -> None:
        joined = self.driver.joined(ticket)
        generation = joined.generation
        assert generation >= client.generation
        assert joined.member_id
        assert joined.protocol is not None
        assert self.protocol.setdefault(generation, joined.protocol) == joined.protocol
        client.member_id, client.generation, client.wants = joined.member_id, generation, "sync"
        if joined.members:
            assert joined.leader == client.member_id
            for member in joined.members:
                assert member.metadata == joined.protocol.encode()
            if not joined.skip_assignment:
                client.leads = [member.member_id for member in joined.members]
        elif client.instance is None:
            assert joined.leader != client.member_id

    def _read_sync(self, client: Client, ticket: int) -> None:
        synced = self.driver.synced(ticket)
        if synced.code is not ErrorCode.NONE:
            self._told(client, synced.code)
            return
        assert synced.protocol == self.protocol[client.generation]
        client.assignment = synced.assignment
        client.wants = "heartbeat"
        if client.instance is None:  # a static one has what its predecessor was given
            assert synced.assignment in (b"", b"%d %s" % (client.generation, client.member_id.encode()))

    # What holds at all times

    @invariant()
    def generations_rise(self) -> None:
        if not hasattr(self, "driver") or GROUP not in self.driver.shard.groups:
            return
        group = self.driver.group
        assert group.generation >= self.last_generation
        self.last_generation = group.generation
        if group.state in (GroupState.COMPLETING, GroupState.STABLE):
            members = frozenset(group.members.by_id)
            if all(member.instance_id is None for member in group.members):
                before = self.members.get(group.generation, members)
                assert members <= before
            self.members[group.generation] = self.members.get(group.generation, members) | members
        assert self.driver.committed() == self.committed

    @invariant()
    def a_start_finds_what_was_written(self) -> None:
        if not hasattr(self, "driver") or self.driver.holds or GROUP not in self.driver.shard.groups:
            return
        group = self.driver.group
        replayed = self.driver.replayed()
        if group.state is GroupState.STABLE or (group.state is GroupState.EMPTY and not group.members.pending):
            before = group.value()
            again = replayed.classic(GROUP)
            assert again is not None
            if group.state is GroupState.STABLE:  # it was written down when the assignment came
                before = before._replace(state_timestamp=again.state_timestamp)
            assert again.value() == before
            assert again.state is group.state
        found = replayed.fetch(GROUP, ("t", 0), None, require_stable=False)
        assert (None if found.value is None else found.value.offset) == self.committed

    def teardown(self) -> None:
        """Let all living clients work for a while: they and no others are members."""
        if not hasattr(self, "driver"):
            return
        self.driver.holds = False
        self.driver.commit_all()
        for client in self.all:  # two of one name would fence each other for ever, but only once each
            if client.is_dead:
                client.ticket = None
        for _ in range(60):
            for client in self.all:
                for _ in range(4):
                    self.step(client)
            self.driver.advance(SESSION // 3)
        alive = [client for client in self.all if not client.is_dead]
        if not alive:
            if GROUP in self.driver.shard.groups:
                self.driver.advance(10 * SESSION)
                assert self.driver.group.state is GroupState.EMPTY
            return
        if not self.is_limited:
            assert self.driver.group.state is GroupState.STABLE
            assert {client.member_id for client in alive} == set(self.driver.group.members.by_id)
            assert {client.generation for client in alive} == {self.driver.group.generation}
            for client in alive:
                assert client.assignment == self.driver.group.members[client.member_id].assignment


TestGroups = Groups.TestCase
TestGroups.settings = settings(stateful_step_count=30)
