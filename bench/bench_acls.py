"""The CPU time of a decision of the authorizer with 10,000 ACLs of 1,000 principals, and of Produce's check."""

from __future__ import annotations

import random
from time import process_time_ns

from seglog.broker.requests import RequestContext
from seglog.broker.security.acls import Entry, Operation, Pattern, PatternType, Permission, ResourceType
from seglog.broker.security.authorization import Authorization
from seglog.broker.security.authorizer import Authorizer, Client
from seglog.broker.security.permissions import NEEDS
from seglog.protocol.apis import ApiKey

_ACLS = 10_000
_PRINCIPALS = 1_000
_TOPICS = 5_000
_ROUNDS = 200_000


def filled() -> Authorizer:
    """Half of the ACLs are literal, a quarter are prefixes of 12 lengths, a quarter are for all topics."""
    rng = random.Random(7)
    patterns: dict[Pattern, set[Entry]] = {}
    for number in range(_ACLS):
        entry = Entry(f"User:{number % _PRINCIPALS}", "*", rng.choice(list(Operation)[2:]), Permission.ALLOW)
        name = f"topic-of-team-{rng.randrange(_TOPICS)}"
        pattern = (
            Pattern(ResourceType.TOPIC, name),
            Pattern(ResourceType.TOPIC, name),
            Pattern(ResourceType.TOPIC, name[: rng.randrange(4, 16)], PatternType.PREFIXED),
            Pattern(ResourceType.TOPIC, "*"),
        )[number % 4]
        patterns.setdefault(pattern, set()).add(entry)
    authorizer = Authorizer()
    for pattern, entries in patterns.items():
        authorizer.put(pattern, sorted(entries))
    return authorizer


def main() -> None:
    authorizer = filled()
    rng = random.Random(8)
    asked = [
        (Client(f"User:{rng.randrange(_PRINCIPALS)}", "10.0.0.1"), f"topic-of-team-{rng.randrange(_TOPICS)}")
        for _ in range(10_000)
    ]

    def measure(what: str, rounds: int, decide: object) -> None:
        assert callable(decide)
        best = min(_run(decide, asked, rounds) for _ in range(5))
        print(f"{what}: {best:.2f} µs")

    def fresh(client: Client, name: str) -> object:
        return authorizer._decide(client, Operation.WRITE, ResourceType.TOPIC, name)

    def known(client: Client, name: str) -> object:
        return authorizer.verdict(client, Operation.WRITE, ResourceType.TOPIC, name)

    authorization = Authorization(authorizer, lambda _: False, lambda: 0.0)
    of_topic = NEEDS[ApiKey.PRODUCE][1]
    contexts = {client: RequestContext(0, 9, "c", client.host, "SASL", "", client.principal) for client, _ in asked}

    def checked(client: Client, name: str) -> object:
        return authorization.permits(contexts[client], of_topic, name)

    measure("a decision that is not remembered", 10_000, fresh)
    measure("a decision that is remembered", _ROUNDS, known)
    measure("the check of a topic in Produce, remembered", _ROUNDS, checked)


def _run(decide: object, asked: list[tuple[Client, str]], rounds: int) -> float:
    assert callable(decide)
    for client, name in asked:
        decide(client, name)
    todo = [asked[number % len(asked)] for number in range(rounds)]
    start = process_time_ns()
    for client, name in todo:
        decide(client, name)
    return (process_time_ns() - start) / rounds / 1000


if __name__ == "__main__":
    main()
