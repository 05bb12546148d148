"""Places the replicas of new partitions on brokers (``AdminUtils.assignReplicasToBrokers``). Pure.

Leaders go round the brokers. Followers are shifted against them by a number that grows with each round, so that all
other brokers take over from a broker that dies. No two replicas of a partition share a rack while another rack has
none.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from random import Random

from seglog.core.error_codes import ErrorCode
from seglog.core.errors import SeglogError


class InvalidReplicationFactorError(SeglogError):
    """More replicas than brokers, or none."""

    code = ErrorCode.INVALID_REPLICATION_FACTOR


def place(
    racks: Mapping[int, str | None], partitions: int, replication_factor: int, rng: Random, *, first: int = 0
) -> list[tuple[int, ...]]:
    """Return the replicas of ``partitions`` partitions, numbered from ``first`` on, the preferred leader first.

    ``racks`` are the brokers that may have replicas; racks count if every broker has one. Raises
    `InvalidReplicationFactorError`.
    """
    if replication_factor < 1:
        raise InvalidReplicationFactorError("Replication factor must be larger than 0.")
    if replication_factor > len(racks):
        raise InvalidReplicationFactorError(
            f"Unable to replicate the partition {replication_factor} time(s): The target replication factor of "
            f"{replication_factor} cannot be reached because only {len(racks)} broker(s) are registered."
        )
    brokers = _alternating(racks)
    count = len(brokers)
    start, shift = rng.randrange(count), rng.randrange(count)
    placed = []
    for number in range(first, first + partitions):
        if number > first and number % count == 0:
            shift += 1
        leader = (start + number) % count
        others = [brokers[_shifted(leader, shift, step, count)] for step in range(count - 1)]
        placed.append((brokers[leader], *_spread(brokers[leader], others, racks, replication_factor - 1)))
    return placed


def _shifted(leader: int, shift: int, step: int, count: int) -> int:
    """Return the position of the ``step``-th follower: each other broker once, starting ``shift`` after the leader."""
    return (leader + 1 + (shift + step) % (count - 1)) % count


def _alternating(racks: Mapping[int, str | None]) -> list[int]:
    """Order the brokers so that neighbours are in different racks, as far as possible."""
    by_rack: dict[str | None, list[int]] = {}
    for node in sorted(racks):
        by_rack.setdefault(racks[node], []).append(node)
    if None in by_rack or len(by_rack) < 2:
        return sorted(racks)
    rounds = zip_longest(*(by_rack[rack] for rack in sorted(by_rack, key=str)))
    return [node for one in rounds for node in one if node is not None]


def _spread(leader: int, others: list[int], racks: Mapping[int, str | None], wanted: int) -> list[int]:
    """Return ``wanted`` of the others, first those in racks without a replica."""
    if None in racks.values():
        return others[:wanted]
    chosen: list[int] = []
    used = {racks[leader]}
    left = list(others)
    while len(chosen) < wanted:
        node = next((node for node in left if racks[node] not in used), None)
        if node is None:  # all racks have equally many
            used = set()
            node = left[0]
        left.remove(node)
        used.add(racks[node])
        chosen.append(node)
    return chosen
