"""Two registered brokers, for tests of one replica."""

from __future__ import annotations

from typing import Final

from seglog.cluster.model import BrokerRegistration, Member

LEADER, FOLLOWER = Member(1, 10), Member(2, 20)
BROKERS: Final = {
    member.node_id: BrokerRegistration(node_id=member.node_id, epoch=member.epoch, kept_since=member.epoch)
    for member in (LEADER, FOLLOWER)
}
LAG_MS: Final = 10_000
