"""The pure decisions of consumer groups beside Kafka's own classes: assignors, metadata hashes, patterns."""

from __future__ import annotations

import time
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import settings

from seglog.coordinators.consumer.assignors import RANGE, UNIFORM, MemberSubscription, assign
from seglog.coordinators.consumer.metadata_hash import group_hash, topic_hash
from seglog.coordinators.consumer.patterns import check_pattern, resolve_patterns
from seglog.coordinators.coordinator_error import CoordinatorError
from tests.cases import case
from tests.coordinators.consumer import generated_groups
from tests.coordinators.consumer.generated_groups import Group, moved, sizes
from tests.kafka import group_decisions
from tests.kafka.group_decisions import ask, assignment_of

ROUNDS = 4
"""Changes of a group, each with its own assignment."""


@pytest.mark.parametrize("name", [UNIFORM, RANGE])
@pytest.mark.parametrize("homogeneous", [True, False])
def test_assignments_are_kafkas(name: str, homogeneous: bool) -> None:
    random = Random(848)
    questions, ours = [], []
    for _ in range(settings().max_examples):
        group = generated_groups.group(random, homogeneous=homogeneous)
        for _ in range(ROUNDS):
            case()
            # Members with the same topics may still count as different, as when one subscribes by a pattern.
            kind = group.is_homogeneous and (homogeneous or random.random() < 0.5)
            questions.append(
                group_decisions.assignment(name, [*group.members.values()], group.partitions, is_homogeneous=kind)
            )
            targets = assign(name, group.members, group.partitions, is_homogeneous=kind)
            ours.append(targets)
            group = generated_groups.changed(random, group.assigned(targets), homogeneous=homogeneous)
    for question, answer, targets in zip(questions, ask(questions), ours, strict=True):
        assert assignment_of(answer, list(targets)) == targets, question


@pytest.mark.parametrize("homogeneous", [True, False])
def test_uniform_is_as_balanced_and_as_sticky_as_kafkas_whatever_the_order(homogeneous: bool) -> None:
    """With topic ids and member ids as they are in life, Kafka walks its hash tables and we walk ours in order."""
    random = Random(1101)
    cases: list[tuple[Group, list[str]]] = []
    questions = []
    for _ in range(settings().max_examples):
        group = generated_groups.group(random, homogeneous=homogeneous, small_ids=False)
        targets = assign(UNIFORM, group.members, group.partitions)
        group = generated_groups.changed(random, group.assigned(targets), homogeneous=homogeneous)
        shuffled = random.sample(list(group.members), len(group.members))
        members = [group.members[one] for one in shuffled]
        cases.append((group, shuffled))
        questions.append(
            group_decisions.assignment(UNIFORM, members, group.partitions, is_homogeneous=group.is_homogeneous)
        )
    ours_moved = kafkas_moved = 0
    for (group, order), answer in zip(cases, ask(questions), strict=True):
        case()
        # Renamed, so that our order is Kafka's one of the members.
        renamed = {name: f"{place:03}" for place, name in enumerate(order)}
        ordered = {renamed[name]: _renamed(group.members[name], renamed[name]) for name in order}
        targets = assign(UNIFORM, ordered, group.partitions)
        kafkas = assignment_of(answer, order)
        before = {name: member.assigned for name, member in group.members.items()}
        ours = {name: targets[renamed[name]] for name in order}
        if group.is_homogeneous:
            assert sorted(sizes(ours).values()) == sorted(sizes(kafkas).values())
            assert moved(before, ours) == moved(before, kafkas)
        ours_moved += moved(before, ours)
        kafkas_moved += moved(before, kafkas)
        assert max(sizes(ours).values()) - max(sizes(kafkas).values()) <= 1
    assert abs(ours_moved - kafkas_moved) <= kafkas_moved // 50


def _renamed(member: MemberSubscription, name: str) -> MemberSubscription:
    return MemberSubscription(member_id=name, topics=member.topics, assigned=member.assigned)


def test_ten_thousand_partitions_of_a_thousand_members_take_little_time() -> None:
    random = Random(5)
    topics = [UUID(int=number + 1) for number in range(100)]
    partitions = dict.fromkeys(topics, 100)
    report = []
    for homogeneous in (True, False):
        members = {
            f"m{number:04}": MemberSubscription(
                member_id=f"m{number:04}",
                topics=frozenset(topics if homogeneous else random.sample(topics, random.randint(1, 100))),
                assigned={},
            )
            for number in range(1000)
        }
        for name in (UNIFORM, RANGE):
            question = group_decisions.assignment(name, [*members.values()], partitions, is_homogeneous=homogeneous)
            start = time.perf_counter()
            targets = assign(name, members, partitions)
            seconds = time.perf_counter() - start
            (answer,) = ask([question])
            assert assignment_of(answer, list(members)) == targets
            report.append((name, homogeneous, round(seconds, 3), round(answer["nanos"] / 1e9, 3)))
    print(report)
    assert max(ours for _, _, ours, _ in report) < 5


def test_metadata_hashes_are_kafkas() -> None:
    random = Random(3)
    questions: list[group_decisions.Question] = []
    ours = []
    for _ in range(settings().max_examples):
        case()
        name = "".join(random.choice("abc.-_XYZ09") for _ in range(random.randint(1, 249)))
        topic_id = UUID(int=random.getrandbits(128))
        names = ["", "a", "b", "rack-1", "us-east-1a", "ü", "𝄞", "\uffee", "z" * 300]
        racks = [random.choices(names, k=random.randint(0, 4)) for _ in range(random.choice((0, 1, 2, 40, 400)))]
        questions.append(group_decisions.topic_hash(name, topic_id, racks))
        ours.append(topic_hash(name, topic_id, racks))
        hashes = {
            f"{random.choice(names)}{number}": random.getrandbits(64) - 2**63 for number in range(random.randint(0, 40))
        }
        questions.append(group_decisions.group_hash(hashes))
        ours.append(group_hash(hashes))
    assert ask(questions) == ours


TOPICS = [
    "a",
    "b",
    "ab",
    "abc",
    "A.B",
    "a-1",
    "a_2",
    "foo",
    "foo.bar",
    "Foo",
    "__consumer_offsets",
    "0",
    "42",
    "x" * 249,
]
ATOMS = (
    r"a b foo . \. [ab] [^a] \d \w \W [[:alpha:]] ^ $ \b \A \z \pL \Qa.b\E \x61 _ [a-c] \p{Greek} (?i:foo) (?:a|b) é \-"
)
SUFFIXES = ["", "", "", "*", "+", "?", "*?", "{2}", "{1,3}", "{0,}"]
SPECIAL = r"""
a[ a( * a** a+* \8 \y [b-a] a{1001} (?<n (?P<n (?P<1a>x) (?!a) (?=a) a\ \pX \p{Nope} [[:nope:]] a{2,1} (?z)a \Z
(? [a a|* x{1000}{1000} (*) (?i a{,2} () []a] (|a)* a{2}{2} \1 (a)\1 \u0061 \x{110000} \x{61} (?<n>a) (?P<n>a) (?i)FOO
"""
DIFFERENT = {
    "a)": ("unexpected )", "regexp/syntax: internal error"),
    "(?<=a)": ("invalid or unsupported Perl syntax", "invalid named capture"),
    "(?P<n>a)(?P<n>b)": (["ab"], "duplicate capture group name"),
    r"a\C": (["ab"], "invalid escape sequence"),
    "((x{40}){40})": ("invalid repeat count", []),
}
"""Ours and Kafka's: docs/differences.md, "Groups"."""


def _pattern(random: Random, depth: int = 2) -> str:
    parts = []
    for _ in range(random.randint(1, 4)):
        if depth and random.random() < 0.2:
            parts.append(f"({_pattern(random, depth - 1)})")
        else:
            parts.append(random.choice(ATOMS.split()))
        parts.append(random.choice(SUFFIXES))
        if random.random() < 0.15:
            parts.append("|")
    return "".join(parts)


def test_patterns_match_and_are_refused_as_by_kafka() -> None:
    random = Random(2)
    patterns = ["", *SPECIAL.split(), *(_pattern(random) for _ in range(20 * settings().max_examples))]
    answers = ask([group_decisions.pattern(text, TOPICS) for text in patterns])
    for text, answer in zip(patterns, answers, strict=True):
        case()
        assert _ours(text) == answer, text


@pytest.mark.parametrize("text", DIFFERENT)
def test_patterns_that_differ_from_kafkas_do_so_in_the_way_that_is_documented(text: str) -> None:
    (kafkas,) = ask([group_decisions.pattern(text, TOPICS)])

    def told(answer: dict[str, Any]) -> Any:
        found = answer.get("error")
        return found.partition("expression: ")[2].removesuffix(".") if found else answer["topics"]

    assert (told(_ours(text)), told(kafkas)) == DIFFERENT[text]


def _ours(text: str) -> dict[str, Any]:
    try:
        check_pattern(text)
    except CoordinatorError as error:
        return {"error": str(error)}
    found = resolve_patterns([text], TOPICS)[text]
    return {"topics": [topic for topic in TOPICS if topic in found]}
