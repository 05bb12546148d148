"""A model of a consumer group, made of what its members are told: who may own a partition when, which epochs and which
offsets may follow each other. It knows nothing of the coordinator.

A member owns a partition from the answer that gives it until it gives it up, which it does before it says so. It may be
removed when its time is up: `MemberView.lease_end` is the earliest moment. Until then no other member may be given the
partition, and the member may not be fenced.

A request without an answer may be carried out late, when its member has gone on. Then the coordinator takes an old list
of owned partitions for a new one, as Kafka's does: a partition that was not in it counts as given up.

A commit is checked by its member's epoch, not by what the member has, as Kafka does. A member that gives up partitions
one after the other stays in its epoch until the last of them, so a commit for which it did not wait is still accepted;
also after the end of its process, until the coordinator removes the member.

An answer may reach a member after its time was up. What it is given then is not its own, and proves nothing about
others.
"""

from __future__ import annotations

from typing import Final, NamedTuple

_LATE_SECONDS: Final = 20.0
"""After so long a request without an answer does not arrive any more."""


class Ownership(NamedTuple):
    """A member has a partition since ``began``."""

    number: int
    owner: str
    epoch: int
    began: float
    order: int
    """In which the members of the group got their partitions."""
    is_late: bool = False
    """It was given by an answer that came after the member's time was up."""

    def goes_on_as(self, other: Ownership) -> bool:
        """Whether the coordinator may not tell them apart: a classic member that gives everything up before it joins
        again keeps its partitions in the coordinator's eyes."""
        return self.owner == other.owner


class Lost(NamedTuple):
    """A request without an answer. ``owned`` are its partitions, None if it named none."""

    sent: float
    epoch: int
    owned: frozenset[int] | None


class Commit:
    """A commit of an offset. ``answered``: when it was acknowledged; None: it was not, or not yet."""

    def __init__(self, name: str, ownership: Ownership, offset: int, sent: float) -> None:
        self.name = name
        self.ownership = ownership
        self.offset = offset
        self.sent = sent
        self.answered: float | None = None
        self.is_refused = False
        self.is_excused = False
        """It was accepted although another member had got the partition, and counts then."""

    def __str__(self) -> str:
        return f"{self.name} ({self.offset} of {self.ownership.owner} in epoch {self.ownership.epoch})"

    def is_before(self, other: Commit) -> bool:
        """Whether it cannot be what counts after ``other`` is acknowledged."""
        if not self.ownership.goes_on_as(other.ownership):
            return self.ownership.order < other.ownership.order
        return self.answered is not None and self.answered < other.sent


class MemberView:
    """A member under one id: what it knows, and what it may rely on."""

    def __init__(self, name: str, session_seconds: float, rebalance_seconds: float) -> None:
        self.name = name
        self.epoch = 0
        self.ended_in = -1
        """The epoch in which its process ended, when the coordinator did not know."""
        self.owned: dict[int, Ownership] = {}
        self.unclear = 0
        """Requests since the last answer that may have been carried out."""
        self.lost: list[Lost] = []
        self._session_seconds = session_seconds
        self._rebalance_seconds = rebalance_seconds
        self._answered = self._clean = -1e9
        """When the last request with an answer was sent; the last one that asked it to give up nothing."""

    @property
    def lease_end(self) -> float:
        return min(self._answered + self._session_seconds, self._clean + self._rebalance_seconds)

    def answer(self, sent: float, epoch: int, *, is_clean: bool) -> None:
        assert epoch >= self.epoch, f"epoch: {self.name} is in {epoch} and was in {self.epoch}"
        self.epoch, self._answered, self.unclear = epoch, sent, 0
        if is_clean:
            self._clean = sent

    def lose(self, sent: float, owned: frozenset[int] | None, *, may_be_late: bool) -> None:
        """There was no answer; or one that leaves open whether it was carried out."""
        self.unclear += 1
        if may_be_late:
            self.lost.append(Lost(sent, self.epoch, owned))

    def protects(self, number: int, now: float) -> bool:
        """Whether no other member may have the partition."""
        if number not in self.owned or now >= self.lease_end:
            return False
        late = (one.owned for one in self.lost if now < one.sent + _LATE_SECONDS)
        return all(owned is None or number in owned for owned in late)

    def may_be_fenced(self, now: float) -> bool:
        """Its time may be up, or two answers were lost: one may be repeated. What arrives late may be one of them."""
        is_late = any(one.epoch < self.epoch or one.owned == frozenset() for one in self.lost)
        return now >= self.lease_end or self.unclear > 1 or is_late


class GroupModel:
    """All members that there ever were. ``restarts``: epochs begin again when the group becomes empty and is of the
    other protocol next."""

    def __init__(self, *, restarts: bool) -> None:
        self.members: list[MemberView] = []
        self.acknowledged: dict[int, list[Commit]] = {}
        self.commits: dict[str, Commit] = {}
        self.latest_epoch = 0
        self.given = 0
        self._restarts = restarts
        self._given_up: dict[int, tuple[MemberView, int]] = {}
        """By the order of an ownership: its member, and the epoch in which it gave the partition up."""
        self._taken_late: set[int] = set()
        """Orders of ownerships that the coordinator may have taken for given up, because of a late request."""

    def member(self, name: str, session_seconds: float, rebalance_seconds: float) -> MemberView:
        view = MemberView(name, session_seconds, rebalance_seconds)
        self.members.append(view)
        return view

    # Epochs

    def joined(self, view: MemberView, epoch: int, latest_before: int) -> None:
        """A new id gets the target's epoch: that of any member before, or a later one."""
        assert self._restarts or epoch >= latest_before, f"epoch: {view.name} joins in {epoch} after {latest_before}"

    def joined_again(self, view: MemberView) -> None:
        """A member of the classic protocol joins under its old id. Its group may have begun again meanwhile."""
        if self._restarts:
            view.epoch = 0

    def answered(self, view: MemberView, sent: float, epoch: int, *, is_clean: bool) -> None:
        view.answer(sent, epoch, is_clean=is_clean)
        self.latest_epoch = max(self.latest_epoch, epoch)

    def fenced(self, view: MemberView, code: int, now: float) -> None:
        assert view.may_be_fenced(now), (
            f"fenced: {view.name} of epoch {view.epoch} is told {code}, {view.lease_end - now:.3f} s before its time "
            f"is up, after {view.unclear} requests without an answer"
        )
        self.gone(view)
        view.ended_in = -1

    # Partitions

    def take(self, view: MemberView, number: int, now: float) -> None:
        """The member is given a partition."""
        is_late = now >= view.lease_end
        if not is_late:
            for other in self.members:
                assert other is view or not other.protects(number, now), (
                    f"two owners: {view.name} gets {number} in epoch {view.epoch}, and {other.name} has it since epoch "
                    f"{other.owned[number].epoch}, for {other.lease_end - now:.3f} s yet"
                )
        self._taken_late |= {
            other.owned[number].order
            for other in self.members
            if other is not view and number in other.owned and now < other.lease_end
        }
        self.given += 1
        view.owned[number] = Ownership(number, view.name, view.epoch, now, self.given, is_late)

    def give_up(self, view: MemberView, number: int) -> None:
        ownership = view.owned.pop(number, None)
        if ownership is not None:
            self._given_up[ownership.order] = view, view.epoch

    def gone(self, view: MemberView) -> None:
        """The member reads nothing any more. If it joins again, it does so in any epoch."""
        view.owned.clear()
        view.ended_in = view.epoch
        view.epoch = 0

    def is_shared_out(self, partitions: int) -> bool:
        """Whether each partition has one owner."""
        owned = sorted(number for view in self.members for number in view.owned)
        return owned == list(range(partitions))

    # Offsets

    def commit(self, ownership: Ownership, offset: int, now: float) -> Commit:
        commit = Commit(f"c{len(self.commits) + 1}", ownership, offset, now)
        self.commits[commit.name] = commit
        return commit

    def acknowledge(self, commit: Commit, now: float) -> None:
        """No other member has got the partition before the commit was sent."""
        number, order = commit.ownership.number, commit.ownership.order
        owner, epoch = self._given_up.get(order, (None, -1))
        is_in_its_epoch = owner is not None and epoch in (owner.epoch, owner.ended_in)
        for view in self.members:
            later = view.owned.get(number)
            if later is None or later.goes_on_as(commit.ownership):
                continue
            is_former = order < later.order and later.began < commit.sent and not later.is_late
            is_excused = is_in_its_epoch or order in self._taken_late
            assert not is_former or is_excused, (
                f"commit: {commit} is accepted, after {view.name} had it in {later.epoch}"
            )
            commit.is_excused |= is_former
        commit.answered = now
        self.acknowledged.setdefault(number, []).append(commit)

    def fetched(self, number: int, name: str, sent: float) -> None:
        """The committed offset is not older than any commit that was acknowledged before the fetch."""
        found = self.commits.get(name)
        assert found is None or not found.is_refused, f"commit: {found} was refused, and counts for {number}"
        for one in self.acknowledged.get(number, ()):
            if one.answered is not None and one.answered < sent:
                assert found is not None, f"offset: none counts for {number}, and {one} was acknowledged"
                is_newest = found is one or found.is_excused or not found.is_before(one)
                assert is_newest, f"offset: {found} counts for {number} after {one}"
