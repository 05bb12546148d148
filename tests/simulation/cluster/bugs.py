"""Bugs of Kafka's past, put back on purpose. Each is named by its issue; docs/replication.md has a table of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import pytest

from seglog.broker import broker_storage
from seglog.broker.broker_storage import BrokerStorage, StorageOpener
from seglog.broker.fetch.cluster_peers import ClusterPeers
from seglog.broker.security.acl_store import StoredAcls
from seglog.cluster import backup, election, formats, membership
from seglog.cluster.formats import Formats
from seglog.cluster.membership import Membership
from seglog.cluster.model import (
    NO_LEADER,
    PARTITIONS,
    BrokerRegistration,
    Evidence,
    Member,
    PartitionState,
    VersionedState,
)
from seglog.cluster.store import ANY_VERSION, Change, CommitStep, Versions
from seglog.core.errors import LogDirFullError, LogDirOfflineError, SeglogError
from seglog.core.fs import Fs, NoSpaceError
from seglog.core.ground import Workers
from seglog.core.types import MAX_INT64, Buffer
from seglog.net.peer_connection import PeerConnection
from seglog.protocol.replica_fetch import FetchResponse
from seglog.replication.evidence_reports import EvidenceReports
from seglog.replication.fetcher import Fetcher
from seglog.replication.group_flushes import GroupFlushes
from seglog.replication.progress import Progress
from seglog.replication.replica import Brokers, Replica, ReplicaAnswer, ReplicaFetch
from seglog.replication.replicas import Replicas
from seglog.storage.directory import log_dir, log_dirs
from seglog.storage.directory import loss_evidence as life
from seglog.storage.directory.cluster_mark import read_marks, write_mark
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.formats.checkpoints import EpochEntry
from seglog.storage.log import epoch_file
from seglog.storage.log.dir_health import DirHealth
from seglog.storage.log.epoch_file import EpochFile, MakeRoom
from seglog.storage.log.epochs import EpochEnd, LeaderEpochs
from seglog.storage.log.log import Log
from tests.kit.virtual_store import VirtualStore
from tests.simulation.bugs import allowance_is_kept, forgotten_principal, no_acls_at_first
from tests.simulation.cluster.scenario import Scenario

Patch = pytest.MonkeyPatch
_HESITATION_SECONDS: Final = 0.5


class Bug(NamedTuple):
    """``number`` is that of the list of bugs not to repeat; ``seed`` one that finds it soon, in ``scenario`` and with
    ``rates`` of faults where they are not the seed's own."""

    number: str
    name: str
    plant: Callable[[Patch], None]
    seed: int = 0
    scenario: Scenario | None = None
    rates: Mapping[str, float] = MappingProxyType({})


def _kip_101(patch: Patch) -> None:
    """A follower truncates at its high watermark, and never asks for epochs."""

    def start_of_following(_: LeaderEpochs, high_watermark: int, log_end: int) -> int:
        return min(high_watermark, log_end)

    patch.setattr(LeaderEpochs, "start_of_following", start_of_following)
    patch.setattr(Replica, "diverging_epoch", lambda *_: None)


def _kip_279(patch: Patch) -> None:
    """An epoch that the leader does not know is said to end where its log does."""

    def end_offset_for(self: Replica, epoch: int) -> EpochEnd:
        known = any(entry.epoch == epoch for entry in self.log.epochs.entries)
        if known and epoch != self.leader_epoch:
            return self.log.end_offset_for_epoch(epoch)
        return EpochEnd(epoch, self.log.log_end_offset)

    patch.setattr(Replica, "end_offset_for", end_offset_for)


def _kip_320(patch: Patch) -> None:
    """Answers are taken whoever gave them, and in whatever epoch they were asked for; and a leader compares epochs only
    at a follower's first fetch in its own, as before KIP-595."""
    compared: set[tuple[int, int, int, int]] = set()

    def serve(self: Replica, asked: ReplicaFetch, brokers: Brokers, now_ms: int) -> ReplicaAnswer:
        key = (id(self), asked.node_id, asked.broker_epoch, self.leader_epoch)
        answer = honest_serve(self, asked._replace(last_epoch=-1) if key in compared else asked, brokers, now_ms)
        if answer.diverging is None:
            compared.add(key)
        return answer

    def take(self: Replica, asked: ReplicaFetch, answer: ReplicaAnswer, records: Buffer) -> None:
        progress, self.progress = self.progress, None
        if asked.offset >= self.log.log_end_offset:
            asked = asked._replace(leader_epoch=self.leader_epoch, offset=self.log.log_end_offset)
        honest(self, asked, answer, records)
        self.progress = progress

    async def take_all(self: Fetcher, link: PeerConnection, response: FetchResponse) -> None:
        for key, asked in self._session.asked.items():
            followed = self._followed.get(key)
            if followed is not None:
                self._session.asked[key] = asked._replace(leader_epoch=followed.replica.leader_epoch)
        await honest_take_all(self, link, response)

    honest, honest_take_all, honest_serve = Replica.take, Fetcher._take_all, Replica.serve_replica
    patch.setattr(Replica, "check_epoch", lambda *_: None)
    patch.setattr(Replica, "serve_replica", serve)
    patch.setattr(Replica, "take", take)
    patch.setattr(Fetcher, "_take_all", take_all)
    patch.setattr(Fetcher, "unfollow", lambda *_: None)


def _kafka_7128(patch: Patch) -> None:
    """A follower joins before it has what is committed."""

    def propose(self: Progress, high_watermark: int, *more: Any, **rest: Any) -> object:
        del high_watermark
        start, self.epoch_start = self.epoch_start, 0
        try:
            return honest(self, 0, *more, **rest)
        finally:
            self.epoch_start = start

    honest = Progress.propose
    patch.setattr(Progress, "propose", propose)


def _kafka_7415(patch: Patch) -> None:
    """A leader that has written nothing yet has no entry for its epoch."""
    patch.setattr(Log, "has_epoch", lambda *_: True)


def _kafka_14704(patch: Patch) -> None:
    """A follower takes over the leader's high watermark, and cuts then."""

    def take(self: Replica, asked: ReplicaFetch, answer: ReplicaAnswer, records: Buffer) -> None:
        is_ours = self.progress is None and asked.leader_epoch == self.leader_epoch
        if is_ours and answer.high_watermark > self.log.high_watermark:
            self.log.update_high_watermark(answer.high_watermark)
        honest(self, asked, answer, records)

    honest = Replica.take
    patch.setattr(Replica, "take", take)


def _kafka_13141(patch: Patch) -> None:
    """A follower whose log is another one counts as having what it says."""

    def serve(self: Replica, asked: ReplicaFetch, brokers: Brokers, now_ms: int) -> ReplicaAnswer:
        if self.progress is not None and asked.node_id in self.progress.followers:
            follower = self.progress.followers[asked.node_id]
            follower.fetched(asked.offset, 0, asked.broker_epoch, self.log.log_end_offset, now_ms, None)
            self.advance(brokers, now_ms)
        return honest(self, asked, brokers, now_ms)

    honest = Replica.serve_replica
    patch.setattr(Replica, "serve_replica", serve)


def _kafka_10706(patch: Patch) -> None:
    """Epochs that begin where the log ends stay when it is cut there."""

    def truncate_from_end(self: LeaderEpochs, end_offset: int) -> bool:
        return honest(self, end_offset + 1)

    honest = LeaderEpochs.truncate_from_end
    patch.setattr(LeaderEpochs, "truncate_from_end", truncate_from_end)


def _kafka_9491(patch: Patch) -> None:
    """The high watermark stays where it was when the log is cut below it."""

    def end_at(log: Log, offset: int) -> None:
        log.log_end_offset, log.recovery_point = offset, min(log.recovery_point, offset)

    patch.setattr(Log, "_end_at", end_at)
    patch.setattr(LogDir, "_lower_checkpoints", lambda *_: None)


def _kafka_9196(patch: Patch) -> None:
    """A new segment makes everything before it visible."""

    def roll(self: Log, offset: int) -> object:
        self.high_watermark = max(self.high_watermark, min(offset, self.log_end_offset))
        return honest(self, offset)

    honest = Log._roll
    patch.setattr(Log, "_roll", roll)


def _kafka_16541(patch: Patch) -> None:
    """The file of the epochs is rewritten without an fsync."""

    def write(fs: Fs, path: str, entries: Sequence[EpochEntry]) -> None:
        data = "".join(f"{line}\n" for line in (0, len(entries), *(f"{a} {b}" for a, b in entries))).encode()
        file = fs.open(f"{path}/leader-epoch-checkpoint", create=True)
        try:
            file.truncate(0)
            file.pwrite(data, 0)
        finally:
            file.close()

    def write_all(files: Sequence[EpochFile], _: Workers, make_room: MakeRoom) -> Mapping[EpochFile, NoSpaceError]:
        for file in files:
            file.write(make_room)
        return {}

    patch.setattr(epoch_file, "write_leader_epochs", write)
    patch.setattr(log_dir, "write_all", write_all)


def _kip_966(patch: Patch) -> None:
    """The last one in sync commits alone: what it loses is lost."""
    patch.setattr(Progress, "has_enough", property(lambda _: True, lambda _, __: None), raising=False)


def _last_replica(patch: Patch) -> None:
    """Who leaves an ISR that is too small to commit anything is not eligible: the last one leads, whatever it lost."""

    def with_isr(state: PartitionState, isr: Any, brokers: Brokers) -> PartitionState:
        found = honest(state, isr, brokers)
        return replace(found, elr=(), last_known=() if found.isr or not state.isr else (state.isr[0],))

    honest = election.with_isr
    patch.setattr(election, "with_isr", with_isr)


def _lost_pages(patch: Patch) -> None:
    """A broker that returns from a power cut counts as having all its former records."""
    patch.setattr(BrokerRegistration, "has_kept", lambda *_: True)


def _same_boot(patch: Patch) -> None:
    """A power cut is mistaken for the death of a process."""
    patch.setattr(life, "_loss", lambda *_: None)


def _any_life(patch: Patch) -> None:
    """A broker that is there again is in the ISR as before, in whichever life."""

    def is_current(member: Member, brokers: Brokers) -> bool:
        return member.node_id in brokers

    def apply(self: Replica, stored: Any, me: Member, *more: Any, **rest: Any) -> bool:
        isr = tuple(me if member.node_id == me.node_id else member for member in stored.state.isr)
        return honest(self, stored._replace(state=replace(stored.state, isr=isr)), me, *more, **rest)

    honest = Replica.apply
    patch.setattr(election, "_is_current", is_current)
    patch.setattr(Replica, "apply", apply)


def _kafka_13091(patch: Patch) -> None:
    """Who is about to leave the ISR does not count any more."""

    def note(self: Progress) -> None:
        isr = (self.proposed or self.state).isr
        self._counted = tuple(member for member in isr if member.node_id != self.node_id)

    patch.setattr(Progress, "_note_members", note)


def _kafka_6082(patch: Patch) -> None:
    """Whoever writes a partition's state overwrites what others have written."""

    async def commit(self: VirtualStore, steps: Sequence[CommitStep]) -> Versions:
        return await honest(self, [_without_version(step) for step in steps])

    honest = VirtualStore.commit
    patch.setattr(VirtualStore, "commit", commit)


def _without_version(step: CommitStep) -> CommitStep:
    is_state = isinstance(step, Change) and step.name.startswith(f"{PARTITIONS}/") and step.version >= 0
    return step._replace(version=ANY_VERSION) if is_state else step


def _unknown_ends(patch: Patch) -> None:
    """A new leader believes that its followers have everything until they say otherwise."""

    def high_watermark(self: Progress, *more: Any) -> int:
        for member in self._counted:
            follower = self.followers.get(member.node_id)
            if follower is not None and follower.broker_epoch == -1:
                follower.broker_epoch, follower.end_offset = member.epoch, 1 << 60
        return honest(self, *more)

    honest = Progress.high_watermark
    patch.setattr(Progress, "high_watermark", high_watermark)


def _same_epoch_again(patch: Patch) -> None:
    """A leader that comes back leads on in the epoch of its last life."""

    def elect(state: PartitionState, *more: Any, unclean: bool, least: int) -> PartitionState:
        elected = honest(state, *more, unclean=unclean, least=least)
        is_same = elected.leader == state.leader
        return replace(elected, leader_epoch=state.leader_epoch) if is_same else elected

    honest = election._elect
    patch.setattr(election, "_elect", elect)


# While the metadata store is away


def _one_ack_in_doubt(patch: Patch) -> None:
    """A leader in doubt answers acks=1."""

    def check(self: Replica, *, needs_all: bool) -> None:
        del needs_all
        self.check_leads()

    patch.setattr(Replica, "_check_unconfirmed", check)


def _proposal_is_written(patch: Patch) -> None:
    """In doubt, the smaller ISR that the leader has proposed counts as written."""

    def weigh(self: Replica, *more: Any, **rest: Any) -> bool:
        if self.progress is not None and self.progress.proposed is not None:
            self.progress.changed(VersionedState(self.progress.proposed, self.progress.version), 0)
        return honest(self, *more, **rest)

    honest = Replica.weigh
    patch.setattr(Replica, "weigh", weigh)


def _epoch_of_last_life(patch: Patch) -> None:
    """A broker that is restarted fetches in the epoch of its last life."""
    last: dict[str, Member] = {}

    async def register(self: Membership) -> bool:
        former = last.get(self._name)
        if former is not None and self.me is None:
            self.me = former
            self._listener.confirmed()
        is_done = await honest(self)
        if self.me is not None:
            last[self._name] = self.me
        return is_done

    honest = Membership._register
    patch.setattr(Membership, "_register", register)


def _one_vouches(patch: Patch) -> None:
    """One follower is enough to say that there is no other leader."""

    def is_followed_since(self: Progress, asked_ms: int) -> bool:
        return any(follower.heard.following_ms > asked_ms for follower in self.followers.values())

    patch.setattr(Progress, "is_followed_since", is_followed_since)


def _doubt_by_timer(patch: Patch) -> None:
    """A coordinator that was paused answers before a timer tells it that its session is in doubt."""
    patch.setattr(Replicas, "check_session", lambda _self: None)


def _full_is_broken(patch: Patch) -> None:
    """A write that finds the disk full takes the directory out of use."""

    def refusal(self: DirHealth, error: OSError) -> LogDirOfflineError:
        self.failed(error)
        return LogDirOfflineError(f"{self.path} is out of use: {error}")

    patch.setattr(DirHealth, "refusal", refusal)


def _full_is_absent(patch: Patch) -> None:
    """A broker starts without the directory that is too full to be opened, and says that it has failed."""

    def is_of_the_disk(error: SeglogError) -> bool:
        return honest(error) or isinstance(error, LogDirFullError)

    honest = log_dirs._is_of_the_disk
    patch.setattr(log_dirs, "_is_of_the_disk", is_of_the_disk)


def _full_for_ever(patch: Patch) -> None:
    """Who has given up a partition because the disk was full never takes it up again."""

    def has_room(self: DirHealth, now: float) -> bool:
        del now
        return self.full is None

    patch.setattr(DirHealth, "has_room", has_room)


def _any_generation(patch: Patch) -> None:
    """A broker takes a store that is older than what it has seen."""
    patch.setattr(broker_storage, "check_store", lambda *_, **__: None)


def _accepted_as_it_is(patch: Patch) -> None:
    """An accepted store names the leaders and the ISRs that it had."""
    patch.setattr(backup, "undecided", lambda state, epoch: replace(state, leader=NO_LEADER, leader_epoch=epoch))


def _same_epochs(patch: Patch) -> None:
    """An older store that is accepted twice gets the same leader epochs."""
    patch.setattr(backup, "later_epoch", lambda leader_epoch, _: leader_epoch + (1 << 20))


def _any_removal(patch: Patch) -> None:
    """A state from an older store names the removal of what was moved since."""
    patch.setattr(
        PartitionState, "names_removal", lambda self, log_epoch: bool(self.isr) and self.leader_epoch > log_epoch
    )


def _any_format(patch: Patch) -> None:
    """A broker joins whatever the cluster's format is."""
    honest = formats.check_format
    patch.setattr(membership, "check_format", lambda found, _: honest(found, Formats(0, 1 << 30)))


def _formats_of_some(patch: Patch) -> None:
    """The format rises although a registered broker does not speak it."""
    patch.setattr(formats, "_check_brokers", lambda *_: None)


def _mark_is_replaced(patch: Patch) -> None:
    """A broker marks a directory as its own before it has asked whose it is."""

    async def open_in_cluster(self: StorageOpener, node_id: int) -> BrokerStorage:
        fs = self._ground.fs
        for path, mark in read_marks(fs, self._config.data_dirs).items():
            write_mark(fs, path, mark._replace(node_id=node_id, cluster_id=self._cluster_id or mark.cluster_id))
        return await honest(self, node_id)

    honest = StorageOpener._open_in_cluster
    patch.setattr(StorageOpener, "_open_in_cluster", open_in_cluster)


def _emptied_disk(patch: Patch) -> None:
    """A candidate's evidence counts even if its log is new, in an empty directory."""

    def had(self: BrokerRegistration, evidence: Evidence, member: Member) -> bool:
        return evidence.node_id == member.node_id == self.node_id and evidence.epoch == self.epoch

    patch.setattr(BrokerRegistration, "had", had)


def _former_life(patch: Patch) -> None:
    """Evidence of an earlier life of a broker counts. Brokers are slow to report, so that there is some."""

    def had(self: BrokerRegistration, evidence: Evidence, member: Member) -> bool:
        return evidence.node_id == member.node_id == self.node_id and evidence.made <= member.epoch

    async def write_all(self: EvidenceReports) -> None:
        await asyncio.sleep(_HESITATION_SECONDS)
        await honest(self)

    honest = EvidenceReports._write_all
    patch.setattr(BrokerRegistration, "had", had)
    patch.setattr(election, "_with_current_evidence", lambda state, _: state)
    patch.setattr(EvidenceReports, "_write_all", write_all)


def _former_copy(patch: Patch) -> None:
    """A restored backup of a directory is mistaken for the directory."""
    patch.setattr(life, "_is_stale", lambda *_: False)


def _unflushed_leader(patch: Patch) -> None:
    """A leader commits what it has not flushed itself, though ``flush.messages`` asks for that."""

    def high_watermark(self: Progress, current: int, flushed_end: int, *more: Any) -> int:
        del flushed_end
        return honest(self, current, MAX_INT64, *more)

    honest = Progress.high_watermark
    patch.setattr(Progress, "high_watermark", high_watermark)


def _unflushed_follower(patch: Patch) -> None:
    """A follower fetches from its new end before that is flushed, though ``flush.messages`` asks for that."""

    async def flush(_: Fetcher) -> None:
        pass

    patch.setattr(Fetcher, "_flush", flush)


def _decided_before(patch: Patch) -> None:
    """After a flush the high watermark becomes what it was when the flush ended, whatever has moved it since."""

    async def flush(self: GroupFlushes, partition: Replica) -> None:
        log, workers = partition.log, self._workers
        try:
            while log.needs_flush and not self._is_closed:
                await workers.run(log.flush)
                decided = log.high_watermark
                await workers.run(lambda: None)
                with log.lock:
                    log.high_watermark = min(decided, log.log_end_offset)
                partition.flushed()
        except SeglogError:
            pass
        finally:
            del self._tasks[partition]

    patch.setattr(GroupFlushes, "_flush", flush)


_ELECTIONS = {"expire_every": 700, "store_slow": 0.0, "prefer_every": 300}
_CUT_OFF = {"cut_every": 700, "expire_every": 700, "prefer_every": 300, "pause_every": 1_500}
"""Leaders that do not know yet that they are deposed."""
_DEPOSED = {
    **dict.fromkeys(("crash_every", "power_every", "stop_every", "disk_every", "away_every"), 0.0),
    **dict.fromkeys(("loss", "store_lost", "store_slow", "disk_slow"), 0.0),
    "cut_every": 600,
    "expire_every": 900,
    "prefer_every": 200,
    "pause_every": 1_500,
    "watch_slow": 0.1,
    "slow": 0.01,
}
"""Nobody dies: leaders are replaced while they write, and come back with what only they have."""
_BACK_AND_FORTH = _DEPOSED | {
    **dict.fromkeys(("cut_every", "pause_every", "watch_slow"), 0.0),
    "expire_every": 500,
    "prefer_every": 120,
    "crash_every": 1_500,
    "slow": 0.1,
}
"""Members of the ISR have diverging logs, and a leader dies before they learn of it."""
_APART = _DEPOSED | {
    **dict.fromkeys(("prefer_every", "watch_slow", "slow"), 0.0),
    "cut_every": 250,
    "expire_every": 2_000,
    "pause_every": 1_000,
}
"""A leader that the store does not hear proposes what is never written."""
_CUT_BACK = {
    **dict.fromkeys(("disk_every", "away_every", "store_slow"), 0.0),
    "cut_every": 400,
    "expire_every": 600,
    "prefer_every": 200,
    "pause_every": 1_000,
    "power_every": 1_500,
}
_OPERATED = Scenario(min_insync=1, operators=True)
_PAIR = Scenario(nodes=2, replicas=2, partitions=3, operators=True)
"""Two candidates that must both report: while one of them is away, the other one may live again."""


def _any_broker(patch: Patch) -> None:
    """Whoever asks on the listener of brokers is one."""
    patch.setattr(ClusterPeers, "is_broker", lambda *_: True)


def _acls_of_the_start(patch: Patch) -> None:
    """A broker does not notice ACLs that others change."""
    patch.setattr(StoredAcls, "_changed", lambda *_: None)


_TAMPERED = {"tamper_every": 1_500, "stop_every": 3_000, "blackout_every": 0, "choose_every": 0}
_DARK = {"blackout_every": 1_500, "tamper_every": 0, "choose_every": 0, "crash_every": 700, "store_slow": 0.05}
_FLUSHED = Scenario(operators=True, flushed=True)
_BLACK = {"blackout_every": 900, "tamper_every": 0, "choose_every": 0, "crash_every": 0}
_RETAINED = Scenario(retention=True)
_AWAY = {"away_every": 2_000, "expire_every": 0, "configure_every": 0}
_ONLY_AWAY = dict.fromkeys(("crash_every", "power_every", "pause_every", "cut_every", "stop_every"), 0.0) | _AWAY
_UNNOTICED = _ONLY_AWAY | {"away_every": 1_500, "watch_slow": 0.6}
"""Followers learn late that another one leads."""
_PAUSED = {"pause_every": 700, "expire_every": 1_500}
_ONE_REPLICA = Scenario(replicas=1, min_insync=1, operators=True)
_ONE_IS_ENOUGH = Scenario(min_insync=1)
_GROUPS = Scenario(groups=True)
_UNCLEAN = Scenario(unclean=True)
_PRINCIPALS = Scenario(principals=True)
_ONE_PARTITION = Scenario()
_PUT_BACK = {"put_back_every": 2_000, "blackout_every": 0, "choose_every": 0}
_MOVED = {"put_back_every": 2_000, "reassign_every": 1_200, "blackout_every": 0, "choose_every": 0, "store_slow": 0.0}
_INSTALLED = {"install_every": 1_500}
_FULL = {"fill_every": 2_000}

BUGS = (
    Bug("B-1", "KIP-101", _kip_101),
    Bug("B-2", "KIP-279", _kip_279, seed=8, scenario=_ONE_PARTITION, rates=_DEPOSED),
    Bug("B-3", "KIP-320", _kip_320, seed=8, rates=_CUT_OFF),
    Bug("B-4", "KAFKA-7128", _kafka_7128),
    Bug("B-5", "KAFKA-7415", _kafka_7415, rates=_ELECTIONS),
    Bug("B-7", "KAFKA-14704", _kafka_14704, scenario=_ONE_PARTITION, rates=_DEPOSED),
    Bug("B-7", "KAFKA-13141", _kafka_13141, seed=7, scenario=_ONE_PARTITION, rates=_BACK_AND_FORTH),
    Bug("B-8", "KAFKA-10706", _kafka_10706, seed=6),
    Bug("B-9", "KAFKA-9491", _kafka_9491, seed=6, scenario=_UNCLEAN, rates=_CUT_BACK),
    Bug("B-9", "KAFKA-9196", _kafka_9196),
    Bug("B-11", "KAFKA-16541", _kafka_16541, seed=7, rates={"power_every": 1_500, "expire_every": 1_500}),
    Bug("B-12", "KIP-966", _kip_966, seed=1),
    Bug("B-12", "last-replica", _last_replica),
    Bug("B-13", "lost-pages", _lost_pages, seed=13),
    Bug("B-13", "same-boot", _same_boot, seed=8),
    Bug("B-13", "KIP-380", _any_life),
    Bug("B-15", "KAFKA-6082", _kafka_6082, seed=2),
    Bug("B-16", "KAFKA-13091", _kafka_13091, seed=17, scenario=_ONE_PARTITION, rates=_APART),
    Bug("", "unknown-ends", _unknown_ends, seed=2),
    Bug("", "emptied-disk", _emptied_disk, seed=7, scenario=_OPERATED, rates=_TAMPERED),
    Bug("", "former-life", _former_life, seed=1, scenario=_PAIR, rates=_DARK),
    Bug("", "former-copy", _former_copy, seed=16, scenario=_OPERATED, rates=_TAMPERED),
    Bug("", "unflushed-leader", _unflushed_leader, seed=1, scenario=_FLUSHED, rates=_BLACK),
    Bug("", "unflushed-follower", _unflushed_follower, scenario=_FLUSHED, rates=_BLACK),
    Bug("", "full-is-broken", _full_is_broken, rates=_FULL),
    Bug("", "full-is-absent", _full_is_absent, seed=1, rates={"fill_every": 1_000, "crash_every": 800}),
    Bug("", "full-for-ever", _full_for_ever, seed=2, rates=_FULL),
    Bug("", "decided-before", _decided_before, seed=26, scenario=_FLUSHED),
    Bug("", "any-generation", _any_generation, seed=5, scenario=_OPERATED, rates=_PUT_BACK),
    Bug("", "accepted-as-it-is", _accepted_as_it_is, seed=1, scenario=_OPERATED, rates=_PUT_BACK),
    Bug("", "same-epochs", _same_epochs, seed=33, scenario=_OPERATED, rates=_PUT_BACK),
    Bug("", "any-removal", _any_removal, seed=42, scenario=_ONE_REPLICA, rates=_MOVED),
    Bug("", "any-format", _any_format, rates=_INSTALLED),
    Bug("", "formats-of-some", _formats_of_some, rates=_INSTALLED),
    Bug("", "mark-is-replaced", _mark_is_replaced, scenario=_OPERATED, rates={"mistake_every": 1_000}),
    Bug("", "same-epoch-again", _same_epoch_again, seed=2, rates={"crash_every": 600}),
    Bug("B-17", "acks=1-in-doubt", _one_ack_in_doubt, seed=7, rates=_AWAY),
    Bug("B-17", "proposal-is-written", _proposal_is_written, seed=7, scenario=_ONE_IS_ENOUGH, rates=_AWAY),
    Bug("B-17", "epoch-of-last-life", _epoch_of_last_life, rates=_AWAY),
    Bug("B-17", "one-vouches", _one_vouches, seed=50, scenario=_GROUPS, rates=_UNNOTICED),
    Bug("B-17", "doubt-by-timer", _doubt_by_timer, seed=80, scenario=_GROUPS, rates=_PAUSED),
    Bug("", "allowance-is-kept", allowance_is_kept, seed=3, scenario=_PRINCIPALS),
    Bug("", "no-acls-at-first", no_acls_at_first, scenario=_PRINCIPALS, rates={"crash_every": 1_000}),
    Bug("", "forgotten-principal", forgotten_principal, scenario=_PRINCIPALS),
    Bug("", "any-broker", _any_broker, scenario=_PRINCIPALS),
    Bug("", "acls-of-the-start", _acls_of_the_start, scenario=_PRINCIPALS),
)
