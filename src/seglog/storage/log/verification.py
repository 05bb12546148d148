"""Verifications of producers: the first batch of a transaction waits in the broker until the coordinator has said that
the partition is in it (KIP-890). Pure.

Rules of Kafka 4.4's ``VerificationStateEntry`` and ``UnifiedLog.maybeStartTransactionVerification``. A verification
begins before the coordinator is asked, and ends with the next batch or marker of a transaction of its producer. A
request may append only under the verification that it began or joined: if a marker came meanwhile, the coordinator's
answer was about a transaction that is over.
"""

from __future__ import annotations

from itertools import count
from typing import Final, NamedTuple

from seglog.records.batch import CONTROL_BIT, BatchHeader

_guards: Final = count(1)


class Verification(NamedTuple):
    """``guard`` names it, and no other of this process. ``lowest_sequence`` is the least first sequence of all requests
    that have joined it, in its latest epoch: a batch with a later one must not be the first in the log.

    ``bumps_epoch``: the producer's epoch rises with each transaction (transaction version 2), so that the first batch
    of a producer that the log does not know has sequence 0.
    """

    guard: int
    epoch: int
    lowest_sequence: int
    bumps_epoch: bool
    begun_ms: int

    def joined(self, epoch: int, sequence: int, *, bumps_epoch: bool) -> Verification:
        """With another batch that waits for the coordinator. In a later epoch it may be of another client, which speaks
        another version; Kafka keeps the first one's, and takes an append that is late by one marker."""
        if epoch > self.epoch:
            return self._replace(epoch=epoch, lowest_sequence=sequence, bumps_epoch=bumps_epoch)
        if epoch == self.epoch and sequence < self.lowest_sequence:
            return self._replace(lowest_sequence=sequence)
        return self

    def ends_with(self, header: BatchHeader) -> bool:
        """Whether it is over once this batch of a transaction is appended. A marker of version 2 ends the transaction
        before: its epoch is that of the transaction whose first batch is waiting."""
        is_marker = bool(header.attributes & CONTROL_BIT)
        return not (self.bumps_epoch and is_marker and header.producer_epoch == self.epoch)


def begin_verification(epoch: int, sequence: int, *, bumps_epoch: bool, now_ms: int) -> Verification:
    return Verification(next(_guards), epoch, sequence, bumps_epoch, now_ms)
