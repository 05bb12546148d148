"""What becomes of one partition's state when brokers come and go, or its leader says who is in sync. Pure.

``brokers`` are those that can serve the partition (`seglog.cluster.model.of_partition`).

Rules of Kafka's ``PartitionChangeBuilder.java`` with eligible leader replicas (KIP-966). Where Kafka's controller sees
each registration in turn, this one may miss some: a replica counts by what its broker says of its own losses
(`Broker.kept_since`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from seglog.cluster.model import NO_LEADER, Broker, Member, PartitionState

Brokers = Mapping[int, Broker]


def first_state(replicas: tuple[int, ...], brokers: Brokers, min_insync: int) -> PartitionState | None:
    """The state of a partition that is new: all replicas that are there have all of its nothing. None: nobody is."""
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
    """The state as it must be with these brokers; the same one if there is nothing to do."""
    min_insync, next_epoch = max(min_insync, 1), state.leader_epoch + 1
    if min_insync > state.min_insync:
        state = _with_min_insync(state, min_insync)
    state = with_isr(state, [member for member in state.isr if _is_current(member, brokers)], brokers)
    # A smaller one after that: who has gone makes no ISR large enough to do without those who are eligible.
    state = _with_min_insync(state, min_insync)
    state = _reassigned(state, brokers)
    staying = [member for member in state.isr if not brokers[member.node_id].is_stopping]
    if staying and len(staying) < len(state.isr):
        state = with_isr(state, staying, brokers)
    if state.leader in state.isr_nodes:
        return state
    elected = _elect(state, brokers, unclean=unclean)
    return replace(elected, leader_epoch=min(elected.leader_epoch, next_epoch))


def _is_current(member: Member, brokers: Brokers) -> bool:
    broker = brokers.get(member.node_id)
    return broker is not None and broker.epoch == member.epoch


def with_isr(state: PartitionState, isr: Iterable[Member], brokers: Brokers) -> PartitionState:
    """The state with other members in its ISR. Who leaves it while it is too small to commit anything stays eligible,
    unless its broker says that it has lost something. The leader may be none of them any more."""
    isr = tuple(isr)
    inside = {member.node_id for member in isr}
    if len(isr) >= state.needed:
        return replace(state, isr=isr, elr=(), last_known=())
    elr: list[Member] = []
    last_known = [node for node in state.last_known if node not in inside]
    for member in dict.fromkeys((*state.elr, *state.isr)):
        if member.node_id in inside or member.node_id in last_known:
            continue
        broker = brokers.get(member.node_id)
        if broker is None or broker.has_kept(member):
            elr.append(member)
        else:
            last_known.append(member.node_id)
    return replace(state, isr=isr, elr=tuple(elr), last_known=tuple(last_known))


def _with_min_insync(state: PartitionState, min_insync: int) -> PartitionState:
    """Take over a configuration. With a smaller one the leader may commit what those who left do not have, if the ISR
    is large enough for it."""
    if min_insync == state.min_insync:
        return state
    changed = replace(state, min_insync=min_insync)
    return replace(changed, elr=(), last_known=()) if len(changed.isr) >= changed.needed else changed


def _elect(state: PartitionState, brokers: Brokers, *, unclean: bool) -> PartitionState:
    """Another leader, in a new epoch: from the ISR, else of those who have everything too, else of those who had, if
    there is one only; else anyone, if that is allowed. Else there is none until someone comes back."""
    in_sync = set(state.isr_nodes)
    leader = next((node for node in state.replicas if node in in_sync), NO_LEADER)
    if leader == NO_LEADER:
        leader = _elect_outside(state, brokers, unclean=unclean)
        if leader != NO_LEADER:
            had_all = any(member.node_id == leader for member in state.elr)
            state = with_isr(state, [Member(leader, brokers[leader].epoch)], brokers)
            if not had_all:  # what the others have is another history now
                state = replace(state, elr=(), last_known=())
    if leader == state.leader == NO_LEADER:
        return state
    # Also for the same one as before: it is in another life, and may have less than it had.
    return replace(state, leader=leader, leader_epoch=state.leader_epoch + 1)


def _elect_outside(state: PartitionState, brokers: Brokers, *, unclean: bool) -> int:
    there = [node for node in state.replicas if node in brokers and not brokers[node].is_stopping]
    eligible = {member.node_id for member in state.elr if member.node_id in there}
    for node in there:
        if node in eligible:
            return node
    if not state.elr and len(state.last_known) == 1 and state.last_known[0] in there:
        return state.last_known[0]
    if not unclean:
        return NO_LEADER
    return next((node for node in there if node in state.last_known), there[0] if there else NO_LEADER)


# Reassignment (KIP-455)


def reassign(state: PartitionState, target: tuple[int, ...]) -> PartitionState:
    """Begin to move a partition to other replicas; those it has now stay until the new ones are in sync.

    Replicas that an earlier move was adding stay so long, too, if they may have what nobody else has.
    """
    has_data = {*state.isr_nodes, *(member.node_id for member in state.elr), *state.last_known}
    now = tuple(node for node in state.replicas if node not in state.adding or node in has_data - set(target))
    adding = tuple(node for node in target if node not in now)
    removing = tuple(node for node in now if node not in target)
    replicas = target + removing
    return _among(replace(state, replicas=replicas, adding=adding, removing=removing), replicas, state.replicas)


def cancel_reassignment(state: PartitionState, *, unclean: bool = False) -> PartitionState:
    """Back to the replicas from before; the leader may be none of them (`settle` elects another). `ValueError` without
    ``unclean`` if nobody of those from before is in sync, or eligible where nobody is: then nobody would have what was
    written meanwhile."""
    replicas = tuple(node for node in state.replicas if node not in state.adding)
    if not unclean and not _may_be_left(state, set(replicas)):
        raise ValueError("none of the replicas from before is in sync")
    return _among(replace(state, replicas=replicas, adding=(), removing=()), replicas, state.replicas)


def _may_be_left(state: PartitionState, replicas: set[int]) -> bool:
    """Whether these have all that is committed, as far as anybody has it. Of several who had everything last, one that
    goes would leave another to be elected for being the only one."""
    if state.isr or state.elr:
        return any(member.node_id in replicas for member in state.isr or state.elr)
    return replicas.issuperset(state.last_known)


def _reassigned(state: PartitionState, brokers: Brokers) -> PartitionState:
    """Complete a reassignment whose new replicas are all in sync, unless those that go are needed to keep what is
    committed: then others have to come back first."""
    if not (state.adding or state.removing):
        return state
    target = tuple(node for node in state.replicas if node not in state.removing)
    in_sync = {member.node_id for member in state.isr if not brokers[member.node_id].is_stopping}
    staying = in_sync & set(target)
    are_missed = len(staying) < min(state.min_insync, len(target)) and not in_sync <= staying
    if not set(state.adding) <= in_sync or not staying or are_missed:
        return state
    return _among(replace(state, replicas=target, adding=(), removing=()), target, state.replicas)


def _among(state: PartitionState, replicas: tuple[int, ...], former: tuple[int, ...]) -> PartitionState:
    """Without the members that are no replicas any more.

    Where there were such, a new epoch begins: who was removed, and is a replica again before it knows that, deletes its
    log yet, and must not be taken into the ISR for what it asks meanwhile
    (``triggerLeaderEpochBumpForReplicaReassignmentIfNeeded``). ``former`` are the replicas that there were.
    """
    state = replace(
        state,
        leader_epoch=state.leader_epoch + (not set(former) <= set(replicas)),
        elr=tuple(member for member in state.elr if member.node_id in replicas),
        last_known=tuple(node for node in state.last_known if node in replicas),
        isr=tuple(member for member in state.isr if member.node_id in replicas),
    )
    return replace(state, elr=(), last_known=()) if len(state.isr) >= state.needed else state


def prefer(state: PartitionState, brokers: Brokers) -> PartitionState:
    """Led by its first replica, if that is in sync and stays."""
    preferred = state.replicas[0]
    broker = brokers.get(preferred)
    if state.leader == preferred or preferred not in state.isr_nodes or broker is None or broker.is_stopping:
        return state
    return replace(state, leader=preferred, leader_epoch=state.leader_epoch + 1)
