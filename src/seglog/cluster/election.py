"""Decides one partition's next state when brokers come and go, or its leader proposes an ISR. Pure.

``brokers`` are those that can serve the partition (`seglog.cluster.model.of_partition`).

The rules are those of Kafka's ``PartitionChangeBuilder.java`` with eligible leader replicas (KIP-966). Kafka's
controller sees each registration in turn; this one may miss some. So a replica counts by what its broker says about its
own losses (`BrokerRegistration.kept_since`).

If no replica is known to have everything, evidence decides among those that had it (`PartitionState.candidates`), and
no other one leads: see docs/decisions/0011-evidence-decides.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from seglog.cluster.model import (
    NO_LEADER,
    BrokerRegistration,
    ElectionKind,
    Evidence,
    Member,
    PartitionState,
    Recovery,
)

Brokers = Mapping[int, BrokerRegistration]


def first_state(replicas: tuple[int, ...], brokers: Brokers, min_insync: int) -> PartitionState | None:
    """Return the state of a new partition; all registered replicas are in sync. None if none is registered."""
    there = [brokers[node] for node in replicas if node in brokers and not brokers[node].is_stopping]
    if not there:
        return None
    isr = tuple(Member(broker.node_id, broker.epoch) for broker in there)
    state = PartitionState(
        replicas=replicas,
        leader=there[0].node_id,
        leader_epoch=0,
        isr=isr,
        min_insync=max(min_insync, 1),
        is_new=True,
    )
    return with_isr(state, isr, {})


def settle(state: PartitionState, brokers: Brokers, *, min_insync: int, unclean: bool) -> PartitionState:
    """Return the state that the partition should have with these brokers; the same one if nothing changes."""
    min_insync, next_epoch = max(min_insync, 1), state.leader_epoch + 1
    if min_insync > state.min_insync:
        state = _with_min_insync(state, min_insync)
    state = _without(state, [member for member in state.isr if not _is_current(member, brokers)], brokers)
    # A smaller one comes after that: members that are gone must not make the ISR large enough to forget the ELR.
    state = _with_min_insync(state, min_insync)
    state = _reassigned(state, brokers)
    state = _with_current_evidence(state, brokers)
    leaving = [member for member in state.isr if brokers[member.node_id].is_stopping]
    if len(leaving) < len(state.isr):
        state = _without(state, leaving, brokers)
    if state.leader in state.isr_nodes:
        return state
    # A reassignment may have begun the next epoch already.
    return _elect(replace(state, leader_epoch=next_epoch - 1), brokers, unclean=unclean, least=state.leader_epoch)


def _is_current(member: Member, brokers: Brokers) -> bool:
    broker = brokers.get(member.node_id)
    return broker is not None and broker.epoch == member.epoch


def _without(state: PartitionState, gone: Iterable[Member], brokers: Brokers) -> PartitionState:
    """Remove members from an ISR whose leader may never hear of it."""
    gone = tuple(gone)
    if not (gone or state.elr or state.last_known or state.left):
        return state
    smaller = with_isr(state, [member for member in state.isr if member not in gone], brokers)
    return replace(smaller, left=_left(smaller, (*state.left, *gone)))


def _left(state: PartitionState, members: Iterable[Member]) -> tuple[Member, ...]:
    """Return the last member of each broker that is not a candidate."""
    inside = {member.node_id for member in state.candidates}
    return tuple({member.node_id: member for member in members if member.node_id not in inside}.values())


def with_isr(state: PartitionState, isr: Iterable[Member], brokers: Brokers) -> PartitionState:
    """Return the state with another ISR. A member that leaves it while it is too small to commit anything stays
    eligible, unless its broker says that it has lost something. The leader may be outside of the new ISR."""
    isr = tuple(isr)
    inside = {member.node_id for member in isr}
    if len(isr) >= state.needed:
        state = replace(state, isr=isr, elr=(), last_known=())
        return replace(state, left=_left(state, state.left))
    elr: list[Member] = []
    last_known = [member for member in state.last_known if member.node_id not in inside]
    lost = {member.node_id for member in last_known}
    for member in dict.fromkeys((*state.elr, *state.isr)):
        if member.node_id in inside or member.node_id in lost:
            continue
        broker = brokers.get(member.node_id)
        if broker is None or broker.has_kept(member):
            elr.append(member)
        else:
            last_known.append(member)
    state = replace(state, isr=isr, elr=tuple(elr), last_known=tuple(last_known))
    return replace(state, left=_left(state, state.left))


def _with_min_insync(state: PartitionState, min_insync: int) -> PartitionState:
    """Take over a configuration. With a smaller one the leader may commit what former members do not have, if the ISR
    is large enough for it."""
    if min_insync == state.min_insync:
        return state
    changed = replace(state, min_insync=min_insync)
    return replace(changed, elr=(), last_known=()) if len(changed.isr) >= changed.needed else changed


def _with_current_evidence(state: PartitionState, brokers: Brokers) -> PartitionState:
    """Drop the reports of earlier broker epochs. While there is a leader only refusals count."""
    current = tuple(
        one
        for one in state.evidence
        if one.node_id in brokers
        and brokers[one.node_id].epoch == one.epoch
        and one.node_id in state.replicas
        and one.node_id not in state.isr_nodes
        and (state.leader == NO_LEADER or one.refused_cut >= 0)
    )
    return state if current == state.evidence else replace(state, evidence=current)


def with_evidence(state: PartitionState, evidence: Evidence) -> PartitionState:
    """Return the state with this report in place of the replica's former one."""
    others = (one for one in state.evidence if one.node_id != evidence.node_id)
    return replace(state, evidence=tuple(sorted((*others, evidence))))


def _elect(state: PartitionState, brokers: Brokers, *, unclean: bool, least: int) -> PartitionState:
    """Elect another leader in the next epoch: from the ISR; any replica, if the partition was never written; an
    eligible leader; by evidence; any replica, if that is allowed. Otherwise there is no leader until a broker comes
    back."""
    in_sync = set(state.isr_nodes)
    leader = next((node for node in state.replicas if node in in_sync), NO_LEADER)
    if leader != NO_LEADER:
        return _led(state, leader)
    started = _started_again(state, brokers) if state.is_new else None
    if started is not None:
        return started
    chosen = _elect_outside(state, brokers, unclean=unclean)
    if chosen is not None:
        return _led_from_outside(state, *chosen, brokers)
    if state.leader == NO_LEADER:
        return replace(state, leader_epoch=least)
    return replace(state, leader=NO_LEADER, leader_epoch=state.leader_epoch + 1)


def _led(state: PartitionState, leader: int) -> PartitionState:
    # A new epoch also for the same leader: its broker has restarted, and may have lost something.
    return replace(state, leader=leader, leader_epoch=state.leader_epoch + 1)


def _started_again(state: PartitionState, brokers: Brokers) -> PartitionState | None:
    """Start a partition that ``is_new`` again: it was never written, so no candidate can miss anything. All registered
    replicas must have reported empty logs, since brokers of the first release write without clearing ``is_new`` and do
    not report. None if some have not reported, or have records."""
    there = [brokers[node] for node in state.replicas if node in brokers and not brokers[node].is_stopping]
    reported = {one.node_id for one in state.evidence}
    if not there or any(broker.node_id not in reported for broker in there) or any(one.end for one in state.evidence):
        return None
    isr = tuple(Member(broker.node_id, broker.epoch) for broker in there)
    empty = replace(state, isr=isr, elr=(), last_known=(), left=(), evidence=())
    return _led(empty, there[0].node_id)


def _led_from_outside(
    state: PartitionState, leader: int, kind: ElectionKind | None, brokers: Brokers
) -> PartitionState:
    """``kind`` is None for an eligible leader, which has everything."""
    elected = with_isr(state, [Member(leader, brokers[leader].epoch)], brokers)
    elected = replace(_led(elected, leader), evidence=(), left=())
    if kind is None:
        return elected
    own = state.evidence_of(leader)
    furthest = max((one.end for one in state.evidence if one.node_id != leader), default=-1)
    recovery = Recovery(elected.leader_epoch, leader, kind, -1 if own is None else own.end, furthest)
    elected = replace(elected, recovery=recovery)
    if kind is ElectionKind.PROVEN:
        return elected
    elected = replace(elected, elr=(), last_known=())  # the others have another history now
    return elected if kind is ElectionKind.LONGEST else replace(elected, unclean_epoch=elected.leader_epoch)


def _elect_outside(state: PartitionState, brokers: Brokers, *, unclean: bool) -> tuple[int, ElectionKind | None] | None:
    there = [node for node in state.replicas if node in brokers and not brokers[node].is_stopping]
    eligible = {member.node_id for member in state.elr}
    for node in there:
        if node in eligible:
            return node, None
    reports = {one.node_id: one for one in state.evidence}
    candidates = {member.node_id: member for member in state.candidates}
    for node in there:
        if node in candidates and node in reports and brokers[node].proves(reports[node], candidates[node]):
            return node, ElectionKind.PROVEN
    left = {member.node_id for member in state.left if _is_heard_or_will_be(member, state, brokers)}
    if candidates and not missing_candidates(state, brokers) and left <= reports.keys():
        longest = _longest(there, [reports[node] for node in (*candidates, *left)])
        if longest is not None:
            return longest, ElectionKind.LONGEST
    if not unclean:
        return None
    if any(node not in reports and brokers[node].reports for node in there):
        return None  # it is about to report
    longest = _longest(there, [reports[node] for node in there if node in reports])
    if longest is not None:
        return longest, ElectionKind.UNCLEAN
    node = next((node for node in there if node in candidates), there[0] if there else NO_LEADER)
    return None if node == NO_LEADER else (node, ElectionKind.UNCLEAN)


def _is_heard_or_will_be(member: Member, state: PartitionState, brokers: Brokers) -> bool:
    """Whether the log of a former member counts when all candidates have lost something. It is not a candidate, since
    it may lack what was committed without it; but all it has belongs to the same history."""
    broker, said = brokers.get(member.node_id), state.evidence_of(member.node_id)
    return broker is not None and (broker.reports if said is None else broker.had(said, member))


def missing_candidates(state: PartitionState, brokers: Brokers) -> tuple[int, ...]:
    """Return the candidates that have not reported the log that they had: they are away, or it was emptied or replaced.
    What they had is unknown, so none of the others is known to have everything that is committed."""
    reports = {one.node_id: one for one in state.evidence}
    return tuple(
        member.node_id
        for member in state.candidates
        if member.node_id not in reports
        or member.node_id not in brokers
        or not brokers[member.node_id].had(reports[member.node_id], member)
    )


def _longest(order: list[int], reports: list[Evidence]) -> int | None:
    """Return the replica with the greatest (epoch of its last batch, log end); of several the first in ``order``. All
    these logs are parts of one history, so it has everything that any of them still has and was committed."""
    most = max(((one.last_epoch, one.end) for one in reports), default=None)
    best = {one.node_id for one in reports if (one.last_epoch, one.end) == most}
    return next((node for node in order if node in best), None)


def choose(state: PartitionState, node: int, brokers: Brokers) -> PartitionState:
    """Let ``node`` lead because an operator chose it, even if another replica leads: what only others have may be
    truncated. ValueError if it is not a registered replica."""
    if node not in state.replicas:
        raise ValueError(f"broker {node} is not one of the replicas {', '.join(map(str, state.replicas))}")
    if node not in brokers or brokers[node].is_stopping:
        raise ValueError(f"broker {node} is not registered: start it first")
    emptied = replace(state, isr=(), elr=(), last_known=(), left=())
    return _led_from_outside(emptied, node, ElectionKind.CHOSEN, brokers)


# Reassignment (KIP-455)


def reassign(state: PartitionState, target: tuple[int, ...]) -> PartitionState:
    """Begin to move a partition to other replicas; the current ones stay until the new ones are in sync.

    Replicas that an earlier move was adding also stay until then if they may have what no other replica has.
    """
    has_data = {member.node_id for member in state.candidates}
    now = tuple(node for node in state.replicas if node not in state.adding or node in has_data - set(target))
    adding = tuple(node for node in target if node not in now)
    removing = tuple(node for node in now if node not in target)
    replicas = target + removing
    return _among(replace(state, replicas=replicas, adding=adding, removing=removing), replicas, state.replicas)


def cancel_reassignment(state: PartitionState, *, unclean: bool = False) -> PartitionState:
    """Return to the replicas from before; the leader may not be one of them (`settle` elects another). Without
    ``unclean``, ValueError if none of them is in sync, or eligible if the ISR is empty: what was written meanwhile
    would be lost."""
    replicas = tuple(node for node in state.replicas if node not in state.adding)
    if not unclean and not _may_be_left(state, set(replicas)):
        raise ValueError("none of the replicas from before is in sync")
    return _among(replace(state, replicas=replicas, adding=(), removing=()), replicas, state.replicas)


def _may_be_left(state: PartitionState, replicas: set[int]) -> bool:
    """Whether these replicas have everything that is committed, as far as any replica has it. If one of several
    last-known replicas left, another could be elected only because it is the last one."""
    if state.isr or state.elr:
        return any(member.node_id in replicas for member in state.isr or state.elr)
    return replicas.issuperset(state.last_known_nodes)


def _reassigned(state: PartitionState, brokers: Brokers) -> PartitionState:
    """Complete a reassignment whose new replicas are all in sync, unless the leaving ones are needed to keep what is
    committed: then others must come back first."""
    if not (state.adding or state.removing):
        return state
    target = tuple(node for node in state.replicas if node not in state.removing)
    in_sync = {member.node_id for member in state.isr if not brokers[member.node_id].is_stopping}
    staying = in_sync & set(target)
    keeping = in_sync | {member.node_id for member in state.elr}
    are_missed = len(staying) < min(state.min_insync, len(target)) and not keeping <= set(target)
    if not set(state.adding) <= in_sync or not staying or are_missed:
        return state
    return _among(replace(state, replicas=target, adding=(), removing=()), target, state.replicas)


def _among(state: PartitionState, replicas: tuple[int, ...], former: tuple[int, ...]) -> PartitionState:
    """Drop members that are no longer replicas.

    If there were any, a new epoch begins. A removed broker that becomes a replica again before it has seen that still
    deletes its log; the ISR must not accept it for a fetch from before
    (``triggerLeaderEpochBumpForReplicaReassignmentIfNeeded``). ``former`` are the replicas from before.
    """
    state = replace(
        state,
        leader_epoch=state.leader_epoch + (not set(former) <= set(replicas)),
        elr=tuple(member for member in state.elr if member.node_id in replicas),
        last_known=tuple(member for member in state.last_known if member.node_id in replicas),
        left=tuple(member for member in state.left if member.node_id in replicas),
        evidence=tuple(one for one in state.evidence if one.node_id in replicas),
        isr=tuple(member for member in state.isr if member.node_id in replicas),
    )
    return replace(state, elr=(), last_known=()) if len(state.isr) >= state.needed else state


def prefer(state: PartitionState, brokers: Brokers) -> PartitionState:
    """Let the preferred replica lead, if it is in sync and not stopping."""
    preferred = state.replicas[0]
    broker = brokers.get(preferred)
    if state.leader == preferred or preferred not in state.isr_nodes or broker is None or broker.is_stopping:
        return state
    return replace(state, leader=preferred, leader_epoch=state.leader_epoch + 1)
