"""Chooses which of several replicas of one partition to read, and how far, by their files alone. Pure.

The directories belong to several brokers, some of which may be dead or were offline for long, and the leader is not
known.

The facts (KIP-101, KIP-279, KIP-320):

- A replica's own log below its high watermark, as far as it has it, is committed: a follower takes the leader's only
  for what it has itself (``Partition.scala``). Above it a replica may have what a later leader never had.
- Within a leader epoch one leader has written every offset once, and a follower appends behind what it shares with the
  leader only. So two logs that both have an epoch are the same up to where the first of them leaves it (`agreed`).
  Where one of them has no epochs at all (formats 0 and 1) they are the same where both are committed.

The rule:

1. The *authority* is the replica with the latest leader epoch; of several the one with the highest high watermark, and
   then the longest. The others cut their logs to its history when they come back.
2. The scan ends at the highest high watermark of all, each of them counted only as far as its replica agrees with the
   authority. So every offset that is read is below the high watermark of a log that has the same bytes there. After an
   unclean election, the discarded records are not read, though a dead broker still calls them committed. (If the latest
   leader's directory is not given, a deposed leader may be taken for the authority: then some committed records are
   read only when a replica has the newer epoch.)
3. The scan reads a replica that agrees with the authority up to there: the one that begins first, since retention and
   DeleteRecords reach each of them at another time; otherwise the authority.

If no file has a high watermark, or the caller asks for the log's end, the authority is read to its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from seglog.core.types import NO_EPOCH
from seglog.storage.log.epochs import LeaderEpochs


class ReplicaFiles(NamedTuple):
    """The files of one replica: offsets, and the leader epochs of ``leader-epoch-checkpoint``.

    ``claimed`` is its high watermark, None if no file has one.
    """

    directory: str
    log_start: int
    log_end: int
    claimed: int | None
    epochs: LeaderEpochs

    @property
    def committed(self) -> int:
        """Up to here its own log is committed for certain. A high watermark beyond its end is about another's, and a
        log begins nowhere behind its own, however old the file is that says it."""
        return 0 if self.claimed is None else min(max(self.claimed, self.log_start), self.log_end)

    def epoch_ends(self) -> dict[int, int]:
        """Each leader epoch and its end, exclusive. A file may have epochs whose batches a power cut removed."""
        entries = [entry for entry in self.epochs.entries if entry.start_offset <= self.log_end]
        starts = [*(entry.start_offset for entry in entries), self.log_end]
        return {entry.epoch: end for entry, end in zip(entries, starts[1:], strict=True)}


class ReplicaChoice(NamedTuple):
    """Read ``replica`` up to ``until``; ``others`` have the same up to there. ``by`` has the high watermark that it is,
    None if it is the log's end."""

    replica: ReplicaFiles
    until: int
    others: tuple[ReplicaFiles, ...]
    by: ReplicaFiles | None


def agreed(one: ReplicaFiles, other: ReplicaFiles) -> int:
    """Up to here two replicas have the same records, as far as they have any.

    >>> old = ReplicaFiles("a", 0, 90, 50, LeaderEpochs([(1, 0), (2, 60)]))
    >>> new = ReplicaFiles("b", 0, 80, 70, LeaderEpochs([(1, 0), (3, 65)]))
    >>> agreed(old, new)
    60
    """
    ours, theirs = one.epoch_ends(), other.epoch_ends()
    if not ours or not theirs:
        return min(one.committed, other.committed)
    shared = max(ours.keys() & theirs.keys(), default=None)
    return 0 if shared is None else min(ours[shared], theirs[shared])


def choose(replicas: Sequence[ReplicaFiles], *, to_end: bool = False) -> ReplicaChoice:
    """Which of ``replicas`` to read (at least one), by the rule above; with ``to_end`` beyond what is committed."""
    to_end = to_end or all(replica.claimed is None for replica in replicas)

    def authority_of(replica: ReplicaFiles) -> tuple[int, int, int]:
        return max(replica.epoch_ends(), default=NO_EPOCH), 0 if to_end else replica.committed, replica.log_end

    authority = max(replicas, key=authority_of)
    shared = {id(replica): agreed(replica, authority) for replica in replicas}
    shared[id(authority)] = authority.log_end
    by = None if to_end else max(replicas, key=lambda replica: min(replica.committed, shared[id(replica)]))
    until = authority.log_end if by is None else min(by.committed, shared[id(by)])
    able = [replica for replica in replicas if shared[id(replica)] >= until]
    able.sort(key=lambda replica: (replica.log_start, replica is not authority, -replica.committed, replica.directory))
    return ReplicaChoice(able[0], until, tuple(able[1:]), by)
