"""The pure decisions of Kafka 4.4.0's group coordinator: assignors, metadata hashes, patterns. One JVM for a list."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from seglog.coordinators.consumer.assignors import MemberSubscription
from tests.kafka.tools import run_java

__all__ = ["Question", "ask", "assignment", "assignment_of", "group_hash", "pattern", "topic_hash"]

Question = dict[str, Any]


def assignment(
    name: str, members: Sequence[MemberSubscription], partitions: Mapping[UUID, int], *, is_homogeneous: bool
) -> Question:
    """Which partitions the members get. Kafka walks members and topics in this order, if the topics' ids are small
    numbers; the answer has ``members``, for `assignment_of`, and ``nanos``."""
    return {
        "op": "assign",
        "assignor": name,
        "homogeneous": is_homogeneous,
        "partitions": {str(topic): count for topic, count in partitions.items()},
        "members": [
            {
                "id": member.member_id,
                "instance": member.instance_id,
                "topics": [str(topic) for topic in sorted(member.topics)],
                "assigned": {str(topic): sorted(numbers) for topic, numbers in sorted(member.assigned.items())},
            }
            for member in members
        ],
    }


def assignment_of(answer: Mapping[str, Any], members: Sequence[str]) -> dict[str, dict[UUID, frozenset[int]]]:
    """An answer as `seglog.coordinators.consumer.assignors.assign` gives it: Kafka leaves members without partitions
    out if there is nothing to assign."""
    return {
        member: {UUID(topic): frozenset(numbers) for topic, numbers in answer["members"].get(member, {}).items()}
        for member in members
    }


def topic_hash(name: str, topic_id: UUID, racks: Sequence[Sequence[str]]) -> Question:
    """The hash of a topic, with the racks of each partition's replicas."""
    return {"op": "topic hash", "name": name, "id": str(topic_id), "racks": racks}


def group_hash(hashes: Mapping[str, int]) -> Question:
    """The hash of a group from those of its topics."""
    return {"op": "group hash", "hashes": hashes}


def pattern(text: str, topics: Sequence[str]) -> Question:
    """Either the ``topics`` that the pattern matches, or the ``error`` by which Kafka refuses it."""
    return {"op": "pattern", "pattern": text, "topics": topics}


def ask(questions: Sequence[Question]) -> list[Any]:
    """Kafka's answer to each question."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.writelines(json.dumps(question) + "\n" for question in questions)
        file.flush()
        lines = run_java("GroupDecisions", [file.name], with_ours=True).split("\n")
    return [json.loads(line) for line in lines if line]
