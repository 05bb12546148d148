"""Who the clients of a simulated broker are, and what each may do.

`Permissions` is the oracle. It knows each state of each list of ACLs and of each user's password, in order, and how far
each broker has certainly come. An answer is right if one of the states agrees that the broker may have gone by while it
answered. From then on that broker never goes by an earlier one: nobody is let in again without another change.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any, Final, Generic, NamedTuple, TypeVar
from uuid import UUID

from seglog.broker.security.acls import (
    ANYONE,
    CLUSTER_NAME,
    Acl,
    Entry,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceType,
)
from seglog.broker.security.permissions import CODES, NEEDS, Denied
from seglog.client.security.sasl import authentication, plain
from seglog.client.security.scram import LEAST_ITERATIONS, new_nonce, salted_password, scram
from seglog.core.broker_config import STANDARD_AUTHORIZER
from seglog.core.errors import AuthenticationFailedError
from seglog.core.types import TopicPartition
from seglog.protocol.apis import ApiKey
from seglog.protocol.message_reader import Message
from tests.broker.security.permission_requests import creation, requests
from tests.simulation.truth import ViolationError, check
from tests.simulation.wire import Channel, UnsentError

T = TypeVar("T")
PLAIN: Final = "PLAIN"
SCRAM: Final = "SCRAM-SHA-256"
_SCRAM_NUMBER: Final = 1
_NOT_FOUND: Final = 91
"""Of a password to delete: an earlier request has deleted it."""
TOPIC_DENIED, GROUP_DENIED, CLUSTER_DENIED = 29, 30, 31
ALICE, BOB, MALLORY = "alice", "bob", "mallory"
"""Alice logs in by PLAIN, and Bob by SCRAM if he has a password; ACLs for them come and go. Mallory never has any."""
_PASSWORDS: Final = ("first", "second")
"""Those that Bob may have."""
_USERS: Final = ("admin", "broker", "client", "producer", "reader", "member", "deleter", ALICE, MALLORY)
GROUPS: Final = Pattern(ResourceType.GROUP, "*")
CLUSTER: Final = Pattern(ResourceType.CLUSTER, CLUSTER_NAME)
_CHANGES: Final[Mapping[ResourceType, Sequence[tuple[Operation, Permission]]]] = {
    ResourceType.TOPIC: (
        (Operation.READ, Permission.ALLOW),
        (Operation.WRITE, Permission.ALLOW),
        (Operation.ALL, Permission.ALLOW),
        (Operation.DESCRIBE, Permission.ALLOW),
        (Operation.READ, Permission.DENY),
        (Operation.WRITE, Permission.DENY),
    ),
    ResourceType.GROUP: (
        (Operation.READ, Permission.ALLOW),
        (Operation.DESCRIBE, Permission.ALLOW),
        (Operation.READ, Permission.DENY),
    ),
}
_IMPLIED_BY: Final = {
    Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
}


# Logins

Answer = Callable[[Channel, asyncio.Future[Message]], Awaitable[Message]]
"""How a client waits for an answer."""


class Login(NamedTuple):
    user: str
    password: str
    mechanism: str = PLAIN


def login_of(user: str) -> Login:
    """By PLAIN."""
    return Login(user, f"{user}-secret")


def secured(host: str, port: int, *, reauth_ms: str) -> dict[str, str]:
    """The settings of a broker with an authorizer, whose clients and whose peers log in. Peers are no super users: they
    prove that they are brokers."""
    users = " ".join(f'user_{user}="{user}-secret"' for user in _USERS)
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return {
        "listeners": f"SASL_PLAINTEXT://{host}:{port}",
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:admin",
        "sasl.enabled.mechanisms": f"{PLAIN},{SCRAM}",
        "sasl.mechanism.inter.broker.protocol": PLAIN,
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
            f'{module} required username="broker" password="broker-secret" {users};'
        ),
        "connections.max.reauth.ms": reauth_ms,
    }


def renewal_of(lifetime: float, rng: Random) -> float:
    """After so many seconds a client logs in again, of a session of ``lifetime`` seconds. A broker refuses to begin
    again within a second (KIP-368)."""
    return max(1.0, lifetime * rng.uniform(0.5, 0.9))


async def log_in(channel: Channel, login: Login, answer: Answer) -> float | None:
    """Authenticate, or again. Returns the seconds until the session ends, None without an end.
    `AuthenticationFailedError`."""
    user, password, name = login
    steps = authentication(
        "the broker",
        name,
        lambda: plain(user, password) if name == PLAIN else scram("sha256", user, password, new_nonce()),
    )
    key, contents = next(steps)
    while True:
        told = await answer(channel, channel.send(key, contents))
        try:
            key, contents = steps.send(told)
        except StopIteration as end:
            lifetime: float | None = end.value
            return lifetime


# The oracle


class Past(Generic[T]):
    """The states of a value of the metadata store, in order."""

    def __init__(self, state: T) -> None:
        self.states = [state]
        self._seen: dict[str, int] = {}

    def becomes(self, state: T) -> None:
        """From now on, or soon."""
        if state != self.states[-1]:
            self.states.append(state)

    @property
    def last(self) -> int:
        return len(self.states) - 1

    def seen(self, broker: str) -> int:
        """The broker goes by no earlier state."""
        return self._seen.get(broker, 0)

    def has_seen(self, broker: str, number: int) -> None:
        self._seen[broker] = max(self.seen(broker), number)

    def must_fit(self, broker: str, since: int, fits: Callable[[T], bool], what: str) -> None:
        """One of the states from ``since`` on must, and is the earliest that the broker has come to."""
        for number in range(since, len(self.states)):
            if fits(self.states[number]):
                self.has_seen(broker, number)
                return
        raise ViolationError(f"{what}: {broker} goes by none of {self.states[since:]}")


class Verdict(NamedTuple):
    """What an answer says about one permission."""

    pattern: Pattern
    operation: Operation
    is_allowed: bool


class Permissions:
    """``refused`` are the values of writes that no log may ever have."""

    def __init__(self) -> None:
        self.acls: defaultdict[Pattern, Past[frozenset[Entry]]] = defaultdict(lambda: Past(frozenset()))
        self.passwords: defaultdict[str, Past[str | None]] = defaultdict(lambda: Past(None))
        self.refused: set[bytes] = set()
        self.done: Counter[str] = Counter()

    def begins(self, broker: str) -> None:
        """A broker starts: it will read the store as it is now, or later."""
        pasts: list[Past[Any]] = [*self.acls.values(), *self.passwords.values()]
        for past in pasts:
            past.has_seen(broker, past.last)

    def seen(self, broker: str) -> Mapping[Pattern, int]:
        """When a request is sent."""
        return defaultdict(int, {pattern: past.seen(broker) for pattern, past in self.acls.items()})

    def check(self, broker: str, since: Mapping[Pattern, int], user: str, verdict: Verdict) -> None:
        """The answer to a request of ``user`` that was sent ``since``."""
        pattern, operation, is_allowed = verdict
        self.done["allowed" if is_allowed else "denied"] += 1
        self.acls[pattern].must_fit(
            broker,
            since[pattern],
            lambda entries: _allows(entries, f"User:{user}", operation) is is_allowed,
            f"{user} is {'allowed' if is_allowed else 'denied'} {operation.name} of {pattern.name}",
        )

    def check_listed(self, broker: str, since: Mapping[Pattern, int], answer: Message) -> None:
        """The answer to a DescribeAcls for all."""
        found = _found(answer)
        for pattern in {**self.acls, **found}:
            listed = f"the ACLs of {pattern} are listed as {found[pattern]}"
            self.acls[pattern].must_fit(broker, since[pattern], frozenset(found[pattern]).__eq__, listed)

    def is_last(self, answer: Message) -> bool:
        """Whether that are all ACLs as they are now."""
        found = _found(answer)
        return all(self.acls[pattern].states[-1] == found[pattern] for pattern in {**self.acls, **found})

    def check_login(self, broker: str, since: int, login: Login, *, is_in: bool) -> None:
        self.done["logged in" if is_in else "not logged in"] += 1
        self.passwords[login.user].must_fit(
            broker,
            since,
            lambda password: (password == login.password) is is_in,
            f"{login.user} {'is' if is_in else 'is not'} let in by {login.password!r}",
        )


def _found(answer: Message) -> defaultdict[Pattern, set[Entry]]:
    """What a DescribeAcls lists."""
    found: defaultdict[Pattern, set[Entry]] = defaultdict(set)
    for one in answer.resources:
        pattern = Pattern(ResourceType(one.resource_type), one.resource_name, PatternType(one.pattern_type))
        for acl in one.acls:
            operation, permission = Operation(acl.operation), Permission(acl.permission_type)
            found[pattern].add(Entry(acl.principal, acl.host, operation, permission))
    return found


def _allows(entries: frozenset[Entry], principal: str, operation: Operation) -> bool:
    """By the ACLs of the only pattern that applies. All are for any host."""
    mine = [entry for entry in entries if entry.principal in (principal, ANYONE)]
    denied = {entry.operation for entry in mine if entry.permission is Permission.DENY}
    allowed = {entry.operation for entry in mine if entry.permission is Permission.ALLOW}
    if denied & {operation, Operation.ALL}:
        return False
    return bool(allowed & {operation, Operation.ALL, *_IMPLIED_BY.get(operation, ())})


# Changes by the administrator


class Change(NamedTuple):
    """A request that changes one value: its states before the request, the value that it makes, and whether a state
    has it."""

    key: ApiKey
    contents: Mapping[str, Any]
    past: Past[Any]
    after: Any
    holds: Callable[[Any], bool]

    def answered(self, broker: str, since: int, answer: Message) -> bool:
        """Whether the broker that answers has made it. Then it goes by it, too."""
        parts = getattr(answer, "results", None) or getattr(answer, "filter_results", ())
        codes = set(codes_of(parts))
        check(not codes & set(map(int, CODES.values())), f"the administrator is told {codes}")
        if codes - {0, _NOT_FOUND}:
            return False
        number = next((one for one in range(since, len(self.past.states)) if self.holds(self.past.states[one])), None)
        if number is None:
            raise ViolationError(f"{self.key.name} was acknowledged, and not made: {self.past.states[since:]}")
        self.past.has_seen(broker, number)
        return True


def creation_of(permissions: Permissions, acls: Sequence[Acl]) -> Change:
    """Of ACLs of one pattern."""
    pattern, more = acls[0].pattern, {acl.entry for acl in acls}
    past = permissions.acls[pattern]
    contents = {"creations": [creation(acl) for acl in acls]}
    return Change(ApiKey.CREATE_ACLS, contents, past, past.states[-1] | more, lambda state: more <= state)


def draw_grants(rng: Random, pattern: Pattern) -> Iterator[Acl]:
    """What Alice and Bob may do at first."""
    for operation, permission in _CHANGES.get(pattern.resource, ()):
        for user in (ALICE, BOB):
            if permission is Permission.ALLOW and rng.random() < 0.6:
                yield Acl(pattern, Entry(f"User:{user}", "*", operation, permission))


def draw_change(rng: Random, permissions: Permissions, patterns: Sequence[Pattern]) -> Change:
    """An ACL, or all that a user has of one pattern; or Bob's password."""
    if rng.random() < 0.15:
        return password_change(rng, permissions)
    pattern = rng.choice(patterns)
    principal = f"User:{rng.choice((ALICE, BOB))}"
    past = permissions.acls[pattern]
    before = past.states[-1]
    if rng.random() < 0.1:
        gone = {entry for entry in before if entry.principal == principal}
        operation, permission = Operation.ANY, Permission.ANY
    else:
        operation, permission = rng.choice(_CHANGES[pattern.resource])
        entry = Entry(principal, "*", operation, permission)
        if entry not in before:
            return creation_of(permissions, [Acl(pattern, entry)])
        gone = {entry}
    wanted = {
        "resource_type_filter": int(pattern.resource),
        "resource_name_filter": pattern.name,
        "pattern_type_filter": int(pattern.type),
        "principal_filter": principal,
        "host_filter": None,
        "operation": int(operation),
        "permission_type": int(permission),
    }
    return Change(ApiKey.DELETE_ACLS, {"filters": [wanted]}, past, before - gone, lambda state: not gone & state)


def password_change(rng: Random, permissions: Permissions) -> Change:
    """Bob gets a password, another one, or none."""
    past = permissions.passwords[BOB]
    after = rng.choice((None, *_PASSWORDS)) if past.states[-1] else rng.choice(_PASSWORDS)
    deletions, upsertions = [], []
    if after is None:
        deletions = [{"name": BOB, "mechanism": _SCRAM_NUMBER}]
    else:
        salted = salted_password("sha256", after, _salt(after), LEAST_ITERATIONS)
        how = {"mechanism": _SCRAM_NUMBER, "iterations": LEAST_ITERATIONS}
        upsertions = [{"name": BOB, **how, "salt": _salt(after), "salted_password": salted}]
    contents = {"deletions": deletions, "upsertions": upsertions}
    return Change(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, contents, past, after, lambda state: state == after)


def _salt(password: str) -> bytes:
    return f"the salt of {password}".encode()


def password_in(value: bytes | None) -> str | None:
    """That of a value at ``config/users/bob``."""
    return next((one for one in _PASSWORDS if value is not None and b64encode(_salt(one)) in value), None)


def draw_login(rng: Random, permissions: Permissions) -> Login:
    """Bob's, with a password that he has, had or may have."""
    now = permissions.passwords[BOB].states[-1]
    return Login(BOB, now if now and rng.random() < 0.8 else rng.choice(_PASSWORDS), SCRAM)


# Requests


def codes_of(value: object) -> Iterator[int]:
    """All error codes of an answer."""
    if isinstance(value, SimpleNamespace):
        for name, one in vars(value).items():
            if name.endswith("error_code"):
                yield one
            else:
                yield from codes_of(one)
    elif isinstance(value, tuple):
        for one in value:
            yield from codes_of(one)


class Probe(NamedTuple):
    """A request, and what its answer says about permissions."""

    key: ApiKey
    contents: Mapping[str, Any]
    verdicts: Callable[[Message], Iterator[Verdict]]


def draw_probe(
    rng: Random, topics: Mapping[str, Pattern], places: Sequence[TopicPartition], known: Collection[str]
) -> Probe:
    """Metadata, offsets and groups. ``topics``: each with the only pattern that applies to it. ``known``: those
    that the broker has already."""
    kind = rng.randrange(5)
    if kind == 0:
        return Probe(ApiKey.METADATA, {"topics": None}, lambda answer: _listed(topics, known, answer))
    if kind == 1:
        named = [{"name": topic} for topic in topics]
        return Probe(ApiKey.METADATA, {"topics": named}, lambda answer: _described(topics, answer))
    if kind == 2:
        member = {"group_id": "h", "generation_id": 0, "member_id": "none"}
        return Probe(ApiKey.HEARTBEAT, member, lambda answer: _of_group(Operation.READ, answer.error_code))
    place = rng.choice(places)
    if kind == 3:
        part = {"partition_index": place.partition, "committed_offset": 1, "committed_metadata": ""}
        commit = {
            "group_id": "h",
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": [{"name": place.topic, "partitions": [part]}],
        }
        return Probe(ApiKey.OFFSET_COMMIT, commit, lambda answer: _committed(topics[place.topic], answer))
    offsets = {
        "replica_id": -1,
        "isolation_level": 0,
        "topics": [{"name": place.topic, "partitions": [{"partition_index": place.partition, "timestamp": -1}]}],
    }
    return Probe(ApiKey.LIST_OFFSETS, offsets, lambda answer: _with_offsets(topics[place.topic], answer))


def _listed(topics: Mapping[str, Pattern], known: Collection[str], answer: Message) -> Iterator[Verdict]:
    """All topics: of those that may not be described, there is no trace."""
    names = {topic.name for topic in answer.topics}
    check(names <= topics.keys(), f"Metadata reveals {names - topics.keys()}")
    for topic, pattern in topics.items():
        if topic in names or topic in known:
            yield Verdict(pattern, Operation.DESCRIBE, topic in names)


def _described(topics: Mapping[str, Pattern], answer: Message) -> Iterator[Verdict]:
    for topic in answer.topics:
        is_denied = topic.error_code == TOPIC_DENIED
        is_empty = not topic.partitions and not topic.topic_id
        check(is_empty or not is_denied, f"Metadata denies {topic.name}, and tells of it: {topic}")
        yield Verdict(topics[topic.name], Operation.DESCRIBE, not is_denied)


def _of_group(operation: Operation, code: int) -> Iterator[Verdict]:
    yield Verdict(GROUPS, operation, code != GROUP_DENIED)


def _committed(pattern: Pattern, answer: Message) -> Iterator[Verdict]:
    code = answer.topics[0].partitions[0].error_code
    yield from _of_group(Operation.READ, code)
    if code != GROUP_DENIED:
        yield Verdict(pattern, Operation.READ, code != TOPIC_DENIED)


def _with_offsets(pattern: Pattern, answer: Message) -> Iterator[Verdict]:
    yield Verdict(pattern, Operation.DESCRIBE, answer.topics[0].partitions[0].error_code != TOPIC_DENIED)


async def log_in_if(
    permissions: Permissions, broker: str, channel: Channel, login: Login, answer: Answer
) -> float | None:
    """`log_in` with a password that may be wrong: `UnsentError` then."""
    since = permissions.passwords[login.user].seen(broker)
    try:
        lifetime = await log_in(channel, login, answer)
    except AuthenticationFailedError as error:
        permissions.check_login(broker, since, login, is_in=False)
        channel.close()
        raise UnsentError from error
    permissions.check_login(broker, since, login, is_in=True)
    return lifetime


# Requests that must be refused


class Forbidden(NamedTuple):
    """A request without the permission for it; ``codes`` are those that its answer may have."""

    key: ApiKey
    version: int
    contents: Mapping[str, Any]
    codes: frozenset[int]

    def check(self, user: str, answer: Message) -> None:
        found = set(codes_of(answer))
        is_refused = bool(found) and found <= self.codes
        check(is_refused, f"{user} gets {found} and not {set(self.codes)} of {self.key.name} v{self.version}: {answer}")


def _all_forbidden() -> Iterator[Forbidden]:
    """Requests of the table of permissions that are refused as a whole, or element by element."""
    for key, version, contents in requests({}):
        needs = [need for need in NEEDS[key] if need.first <= version <= need.last]
        codes = {int(need.code) for need in needs if need.denied is Denied.REQUEST and not need.of}
        if needs and needs[0].denied is Denied.REQUEST and not needs[0].of and len(codes) == 1:
            yield Forbidden(key, version, contents, frozenset(codes))


OF_BROKERS_AND_OPERATORS: Final = tuple(_all_forbidden())


def draw_forbidden(rng: Random, nodes: Sequence[int], place: TopicPartition, topic_id: UUID | None) -> Forbidden:
    """What only brokers and operators may ask. Often it is the fetch of a follower."""
    if rng.random() < 0.6:
        return rng.choice(OF_BROKERS_AND_OPERATORS)
    part = {"partition": place.partition, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    limits = {"max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20, "isolation_level": 0}
    contents: dict[str, object] = {**limits, "session_id": 0, "session_epoch": -1, "forgotten_topics_data": []}
    node, refused = rng.choice(nodes), frozenset({CLUSTER_DENIED})
    if topic_id is None or rng.random() < 0.3:
        contents |= {"replica_id": node, "topics": [{"topic": place.topic, "partitions": [part]}]}
        return Forbidden(ApiKey.FETCH, 12, contents, refused)
    state = {"replica_id": node, "replica_epoch": rng.randrange(1, 9)}
    contents |= {"replica_state": state, "topics": [{"topic_id": topic_id, "partitions": [part]}]}
    return Forbidden(ApiKey.FETCH, 17, contents, refused)


async def must_be_refused(
    channel: Channel, rng: Random, request: tuple[ApiKey, Mapping[str, Any]], answer: Answer
) -> None:
    """A request before a login, in the middle of one, or after one that fails: it is not answered. `LostError` is what
    must come."""
    before = rng.choice(("", "versions", "handshake", "failure"))
    if before == "versions":
        told = await answer(channel, channel.send(ApiKey.API_VERSIONS, {}, 2))
        check(told.error_code == 0, f"ApiVersions is answered with {told.error_code} before a login")
    elif before == "handshake":
        told = await answer(channel, channel.send(ApiKey.SASL_HANDSHAKE, {"mechanism": rng.choice((PLAIN, SCRAM))}))
        check(told.error_code == 0, f"SaslHandshake is answered with {told.error_code}")
    elif before == "failure":
        login = rng.choice((Login("admin", "guessed"), Login(MALLORY, "guessed", SCRAM), Login(BOB, "guessed", SCRAM)))
        try:
            await log_in(channel, login, answer)
        except AuthenticationFailedError:
            pass
        else:
            raise ViolationError(f"{login} is let in")
    key, contents = request
    told = await answer(channel, channel.send(key, contents))
    raise ViolationError(f"{key.name} is answered without a login: {told}")
