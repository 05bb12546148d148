"""The controller (``KafkaController``): one broker claims the role, decides after each change, and writes what differs.

Each claim starts a new epoch. Each commit checks that ``epochs/controller`` still has the version that the claim gave
it, so a deposed controller that does not know it writes nothing. (The version of ``controller`` itself fences nothing:
it starts again with each session.)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final
from uuid import UUID

from seglog.cluster.cluster_view import (
    CONTROLLER,
    Changes,
    ClusterView,
    ControllerRegistration,
    NamedValue,
    decode_controller,
    encode_controller,
)
from seglog.cluster.controller_decisions import DecisionScope, Key, PartitionDecision, balance, decide
from seglog.cluster.features import FEATURES, finalize_missing
from seglog.cluster.membership import Membership, count
from seglog.cluster.model import (
    GENERATION,
    RAISED,
    TOPICS,
    ElectionKind,
    InvalidStateError,
    Member,
    decode_topic,
    encode,
    partition_name,
)
from seglog.cluster.store import (
    MISSING,
    Change,
    Check,
    CommitConflictError,
    MetadataStore,
    SessionLostError,
    StoreClosedError,
    StoreFailedError,
    UnknownOutcomeError,
    VersionedValue,
    Versions,
    in_commits,
)
from seglog.core.ground import Ground

CONTROLLER_EPOCHS: Final = "epochs/controller"
_AT_ONCE: Final = 250
"""Partitions to decide before other tasks get a turn on the loop: about 3 ms."""
_RETRY_SECONDS: Final = 0.1
_LOOK_SECONDS: Final = 1.0
"""How often the controller checks its role when nothing changes."""

_log: Final = logging.getLogger("seglog.cluster")


class _OverError(Exception):
    """This broker is not the controller any more, or not certainly."""


class Controller:
    """Call `run`; ``epoch`` is the controller epoch while this broker is the controller, otherwise None.

    ``imbalance`` is the part of a broker's preferred partitions that other brokers may lead; it is checked every
    ``balance_seconds`` (None: never).
    """

    def __init__(
        self,
        store: MetadataStore,
        view: ClusterView,
        membership: Membership,
        *,
        ground: Ground,
        imbalance: float,
        balance_seconds: float | None,
    ) -> None:
        self.epoch: int | None = None
        self._store = store
        self._view = view
        self._membership = membership
        self._now = ground.clock.monotonic
        self._imbalance = imbalance
        self._balance_seconds = balance_seconds
        self._balance_at = 0.0
        self._fence = Check(CONTROLLER_EPOCHS, MISSING)
        self._woken = asyncio.Event()
        self._scope = DecisionScope(view)
        self._decided: frozenset[Key] = frozenset()
        """The partitions whose final decisions the view takes over now."""

    def resign(self) -> None:
        """Decide nothing until the session is certain and the store says that this broker is the controller."""
        if self.epoch is not None:
            _log.info("the controller of epoch %d resigns", self.epoch)
        self.epoch = None
        self._woken.set()

    async def run(self) -> None:
        """Run until cancelled, or until the store is closed."""
        self._view.listeners.append(self._seen)
        try:
            while True:
                self._woken.clear()
                try:
                    seconds = await self._turn()
                except (StoreFailedError, SessionLostError) as error:
                    _log.warning("the controller cannot write: %s", error)
                    seconds = _RETRY_SECONDS
                except _OverError:
                    self.resign()
                    seconds = _RETRY_SECONDS
                await self._wait(seconds)
        except StoreClosedError:
            return
        finally:
            self._view.listeners.remove(self._seen)
            self.resign()

    async def _wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()

    def _seen(self, changes: Changes) -> None:
        if self.epoch is None and not changes.controller:
            return  # a new controller decides about everything
        if self._decided:
            self._scope.wrote(changes.partitions & self._decided)
            changes = changes._replace(partitions=changes.partitions - self._decided)
        self._scope.note(changes)
        if changes != Changes() or not self._scope.is_empty:
            self._woken.set()

    def rules_changed(self) -> None:
        """The rules of topics may have changed: decide about everything."""
        self._scope.add_all()
        self._woken.set()

    async def _turn(self) -> float:
        """Do what is due. Return how many seconds to wait for a change."""
        me = self._membership.me
        if me is None or not self._membership.is_certain:
            if self.epoch is not None:
                raise _OverError
            return _RETRY_SECONDS
        seen = self._view.controller
        if seen is None or (seen.node_id == me.node_id and seen.broker_epoch != me.epoch):
            self.epoch = None
            if not await self._claim(me):
                return _RETRY_SECONDS
        elif seen.node_id != me.node_id:
            if self.epoch is not None:
                raise _OverError
            return _LOOK_SECONDS
        elif self.epoch != seen.epoch:
            await self._take_over(me, seen)
        if not self._view.features.epoch:
            await self._finalize_features()
        await self._act()
        return await self._balance()

    # The role

    async def _claim(self, me: Member) -> bool:
        """Claim a role that no broker has, or that an earlier epoch of this broker had."""
        session = self._membership.session
        if session is None:
            return False
        found = await self._store.get_many([CONTROLLER_EPOCHS, CONTROLLER])
        counter, former = found.get(CONTROLLER_EPOCHS), found.get(CONTROLLER)
        if former is not None:
            self._view.note(CONTROLLER, *former)
            try:
                held = decode_controller(former.value)
            except InvalidStateError:  # the view has logged it
                return False
            if held.node_id != me.node_id or held.broker_epoch == me.epoch:
                return False  # decided again when the view has it
        claimed = ControllerRegistration(me.node_id, me.epoch, count(CONTROLLER_EPOCHS, counter) + 1)
        value = encode_controller(claimed)
        steps = [Change(CONTROLLER_EPOCHS, b"%d" % claimed.epoch, MISSING if counter is None else counter.version)]
        if former is not None:
            steps.append(Change(CONTROLLER, None, former.version))
        try:
            versions = await self._store.commit([*steps, Change(CONTROLLER, value, MISSING, session)])
        except (CommitConflictError, UnknownOutcomeError):
            return False  # another broker was faster, or the claim was made: `_take_over` follows when it is seen
        self._check_certain(me)
        self._begin(claimed, versions[0])
        self._view.note(CONTROLLER, value, 0)
        return True

    async def _take_over(self, me: Member, seen: ControllerRegistration) -> None:
        """This broker has the role by a claim whose answer was lost, or by one from before its session was in doubt."""
        counter = await self._store.get(CONTROLLER_EPOCHS)
        self._check_certain(me)
        if counter is None or count(CONTROLLER_EPOCHS, counter) != seen.epoch or self._view.controller != seen:
            raise _OverError
        self._begin(seen, counter.version)

    def _begin(self, controller: ControllerRegistration, version: int) -> None:
        self.epoch = controller.epoch
        self._fence = Check(CONTROLLER_EPOCHS, version)
        self._scope.add_all()
        self._balance_at = self._now() + (self._balance_seconds or 0)
        _log.info("broker %d is the controller in epoch %d", controller.node_id, controller.epoch)

    def _check_certain(self, me: Member) -> None:
        if self._membership.me != me or not self._membership.is_certain:
            raise _OverError

    # Deciding

    async def _finalize_features(self) -> None:
        """A store of an older release, or a rebuilt one, has no features yet."""
        written = await finalize_missing(self._store)
        if written is not None:
            self._view.note(FEATURES, *written)
            _log.info("features are finalized: %s", dict(self._view.features.levels))

    async def _act(self) -> None:
        """Decide about everything that has changed, and write the decisions. What cannot be written is decided
        again."""
        await self._view.until_taken_up()  # a topic that goes takes its partitions with it, in a later part
        keys = self._scope.take()
        done = 0
        try:
            while done < len(keys):
                some = keys[done : done + _AT_ONCE]
                decisions: Sequence[PartitionDecision] = list(decide(self._view.view(), some))
                if any(one.state is None for one in decisions):
                    decisions = await self._without_topics_that_are(decisions)
                self._log_growth(decisions)
                await self._write(decisions)
                self._tell(decisions)
                done += len(some)
                await asyncio.sleep(0)
        finally:
            self._scope.add(keys[done:])

    def _log_growth(self, decisions: Sequence[PartitionDecision]) -> None:
        """Log added replicas; `decide` adds them only to topics that were created with too few brokers."""
        for topic_id, number, state, version in decisions:
            before = self._view.partitions.get((topic_id, number))
            if state is not None and version is not None and before is not None and state.adding > before.state.adding:
                name = self._view.topics_by_id[topic_id].name
                _log.info("%s-%d gets replicas on brokers %s: more have joined", name, number, list(state.adding))

    def _tell(self, decisions: Sequence[PartitionDecision]) -> None:
        """Log each leader from outside of the ISR, the reason, and which offsets may be missing."""
        for one in decisions:
            stored = self._view.partitions.get((one.topic_id, one.number))
            if one.state is None or stored is None or one.state.recovery is None:
                continue
            recovery, topic = one.state.recovery, self._view.topics_by_id.get(one.topic_id)
            if recovery.leader_epoch == one.state.leader_epoch == stored.state.leader_epoch:
                level = logging.INFO if recovery.kind is ElectionKind.PROVEN else logging.WARNING
                name = one.topic_id if topic is None else topic.name
                _log.log(level, "%s-%d: %s", name, one.number, recovery)

    async def _without_topics_that_are(self, decisions: Sequence[PartitionDecision]) -> Sequence[PartitionDecision]:
        """Drop the deletion of partitions whose topics may exist: a view may see a partition before its topic, and
        cannot decode a topic that a later seglog wrote. A topic is created before its partitions and its id is never
        reused, so a read now is conclusive. It is only needed if the view has not seen the topics go."""
        if all(one.state is not None or self._view.was_removed(one.topic_id) for one in decisions):
            return decisions
        found = await self._store.load(TOPICS)
        there: set[UUID] | None = None
        try:
            there = {decode_topic(name, value.value).topic_id for name, value in found.items()}
        except InvalidStateError as error:
            _log.warning("no partition is deleted: %s", error)
        certain: list[PartitionDecision] = []
        for one in decisions:
            if one.state is not None or (there is not None and one.topic_id not in there):
                certain.append(one)
            else:
                self._scope.put_off([(one.topic_id, one.number)])
        return certain

    async def _balance(self) -> float:
        """Give partitions back to their preferred leaders when that is due."""
        if self._balance_seconds is None:
            return _LOOK_SECONDS
        left = self._balance_at - self._now()
        if left <= 0:
            await self._write(list(balance(self._view.view(), self._imbalance)))
            self._balance_at = self._now() + self._balance_seconds
            return 0.0
        return min(left, _LOOK_SECONDS)

    # Writing

    async def _write(self, decisions: Sequence[PartitionDecision]) -> None:
        """Write the decisions in as few commits as possible. What others have changed meanwhile is noted and decided
        again."""
        by_name = {partition_name(one.topic_id, one.number): one for one in decisions}
        waiting = list(_commits(by_name))
        while waiting:
            steps = waiting.pop()
            try:
                versions = await self._commit(steps)
            except (CommitConflictError, UnknownOutcomeError) as error:
                rest = await self._unchanged(steps)
                is_known = not isinstance(error, UnknownOutcomeError)
                # All are unchanged: another value came and went. Halves find the step that fails.
                half = (len(rest) + 1) // 2 if is_known and len(rest) == len(steps) > 1 else len(rest)
                waiting += [part for part in (rest[:half], rest[half:]) if part]
                if is_known and len(rest) == len(steps) == 1:
                    raise StoreFailedError(f"{steps[0].name} cannot be changed: {error}") from error
            else:
                written = (by_name[step.name] for step in steps)
                self._decided = frozenset((one.topic_id, one.number) for one in written if one.is_final)
                try:
                    self._view.note_all(
                        NamedValue(step.name, None if step.value is None else VersionedValue(step.value, version))
                        for step, version in zip(steps, versions, strict=True)
                    )
                finally:
                    self._decided = frozenset()

    async def _commit(self, steps: Sequence[Change]) -> Versions:
        if self.epoch is None or not self._membership.is_certain:
            raise _OverError
        return (await self._store.commit([self._fence, RAISED, *steps]))[2:]

    async def _unchanged(self, steps: Sequence[Change]) -> list[Change]:
        """Return the steps whose values are unchanged, and note the others. Raises if this broker is no longer the
        controller."""
        found = await self._store.get_many([CONTROLLER_EPOCHS, *(step.name for step in steps)])
        counter = found.get(CONTROLLER_EPOCHS)
        if counter is None or counter.version != self._fence.version:
            raise _OverError
        rest = [step for step in steps if _version(found.get(step.name)) == step.version]
        others = [step.name for step in steps if _version(found.get(step.name)) != step.version]
        self._view.note_all(NamedValue(name, found.get(name)) for name in others)
        return rest


def _commits(decisions: Mapping[str, PartitionDecision]) -> Iterator[list[Change]]:
    """By the names of the partitions."""
    steps = [
        Change(name, None if one.state is None else encode(one.state), MISSING if one.version is None else one.version)
        for name, one in decisions.items()
    ]
    for commit in in_commits(steps, [Check(CONTROLLER_EPOCHS, 0), Check(GENERATION, 0)]):
        yield [step for step in commit if isinstance(step, Change)]


def _version(found: VersionedValue | None) -> int:
    return MISSING if found is None else found.version
