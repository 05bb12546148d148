"""Jobs into a log directory that a seglog broker has open, as `commit_client` has for one that nobody has open.

Tasks stage segments as ever. The commit is one transaction at the broker: the leaders take over large segments from
where they lie (`directory_owner`), small ones are sent to them, and the mark of the batch is an offset in the same
transaction. So one EndTxn decides about all of it, in a cluster too.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, suppress
from typing import Final

from seglog.client.client_config import WRITE, ClientConfig
from seglog.client.cluster_connections import ClusterConnections, ClusterMetadata
from seglog.client.connection import check_answer
from seglog.client.kept_connections import connections
from seglog.client.produce.group_mark import GroupMark
from seglog.client.produce.mark_topic import MarkTopic
from seglog.client.produce.mark_value import MarkValue
from seglog.client.produce.transaction import Transaction
from seglog.client.retries import Retries
from seglog.client.topics import create_topic
from seglog.core.clock import SystemClock
from seglog.core.config import LogConfig
from seglog.core.errors import (
    AdoptError,
    InvalidConfigError,
    RequestFailedError,
    SeglogError,
    UnknownTopicError,
)
from seglog.core.fs import OsFs
from seglog.core.types import TopicPartition
from seglog.protocol.apis import ApiKey
from seglog.spark.runtime.processes import ProcessWatch
from seglog.spark.write.brokers.batch_mark import (
    BatchMark,
    BatchMarkError,
    decide,
    generation_for,
    is_decided,
    missing_before,
    read_mark,
)
from seglog.spark.write.brokers.names import SinkNames
from seglog.spark.write.directories.commit_client import CommitClient, CommitResult, JobStart, TopicTarget
from seglog.spark.write.directories.commit_coordinator import JobRequest, check_agrees
from seglog.spark.write.directories.directory_owner import DirectoryOwner
from seglog.spark.write.directories.staged_transaction import write_staged
from seglog.spark.write.write_options import WriteOptions
from seglog.storage.adopt import NO_INTAKE, Intake, OpenIntake, StagedPart, read_ledger
from seglog.storage.directory.adoption import STAGING, remove_quietly
from seglog.storage.formats.adopt_ledger import JOB
from seglog.storage.formats.paths import OWN_DIRECTORY

_log: Final = logging.getLogger("seglog.spark")
_TIMEOUT: Final = 900.0
"""Seconds that a commit may take: the most that brokers allow unless they are configured otherwise."""
_QUERY: Final = "query:"
_TOPIC: Final = 2
"""The resource type of a topic's configuration."""
_BROKER: Final = 4
_RETENTION: Final = "offsets.retention.minutes"
_COMMITTED: Final = MarkValue(1, "")
_DEFAULT: Final = 5
"""The source of a value that is Kafka's default."""


def running_brokers(directories: Sequence[str]) -> list[DirectoryOwner]:
    """The brokers that have these log directories open; those of this user on this machine."""
    return [owner for directory in directories if (owner := DirectoryOwner(directory)).is_broker()]


def commit_client(
    directories: Sequence[str], options: WriteOptions, *, linger: float
) -> BrokerCommitClient | CommitClient:
    """The client for these directories: of the brokers that have them open, or else of a commit coordinator, which
    opens the only one. `InvalidConfigError` if there are several, and no broker."""
    if brokers := running_brokers(directories):
        return BrokerCommitClient(brokers, options)
    if len(directories) > 1:
        raise InvalidConfigError(
            f"path {options.path!r}: several directories can be written to while brokers have them open, and none of "
            "these is open in a seglog broker of this user on this machine"
        )
    return CommitClient(directories[0], linger=linger)


class BrokerCommitClient:
    """The same methods as `CommitClient`. Raises `RequestFailedError`, `BatchMarkError` and `InvalidConfigError`."""

    def __init__(self, owners: Sequence[DirectoryOwner], options: WriteOptions) -> None:
        """``owners`` of directories of one cluster."""
        self._owners = owners
        self._options = options
        servers = ",".join(dict.fromkeys(owner.bootstrap for owner in owners))
        properties = {"bootstrap.servers": servers, "transaction.timeout.ms": str(round(_TIMEOUT * 1000))}
        self._config = ClientConfig.from_mapping(properties, use=WRITE)
        self._fs = OsFs()

    @property
    def directory(self) -> str:
        return self._owners[0].directory

    @property
    def _names_of_directories(self) -> str:
        return ", ".join(owner.directory for owner in self._owners)

    @property
    def _cluster(self) -> ClusterConnections:
        return connections(self._config)

    # Begin

    def begin(self, request: JobRequest) -> JobStart:
        """Create the topics of a job that do not exist, and describe all that it may write to."""
        self._remove_orphans()
        named = request.application is not None and not request.application.startswith(JOB)
        if (named or request.stream is not None) and self._options.mark_topic is None:
            raise InvalidConfigError(
                f"option markTopic is missing: a broker has {self.directory} open, and with the column topic its marks "
                "need a topic"
            )
        if named and (versions := self._versions(str(request.application))) is not None:
            versions.prepare()
        wanted = None if request.topic is None else sorted({request.topic, *request.create})
        found = self._topics(self._cluster.metadata(wanted))
        for name, partitions in request.create.items():
            if name in found:
                there = LogConfig.from_mapping(found[name].config)
                check_agrees(name, found[name].partitions, there, partitions, request.config)
            else:
                self._create(name, partitions, request.config)
        if request.create.keys() - found.keys():
            found = self._topics(self._cluster.metadata(wanted))
        if request.topic is not None:
            if request.topic not in found:
                raise UnknownTopicError(f"the broker of {self.directory} has no topic {request.topic}")
            found = {request.topic: found[request.topic]}
        adopted = named and self._is_adopted(str(request.application), request.version)
        return JobStart(found, adopted, self._homes(self._cluster.metadata(found)))

    def _homes(self, metadata: ClusterMetadata) -> dict[TopicPartition, str]:
        """Where to stage for each partition: in the directory of its leader, or else of another replica."""
        homes = {}
        for name, topic in metadata.topics.items():
            for number, state in topic.partitions.items():
                partition = TopicPartition(name, number)
                there = [one for one in self._owners if self._fs.exists(os.path.join(one.directory, str(partition)))]
                led = [one for one in there if one.node_id == state.leader]
                if there:
                    homes[partition] = (led or there)[0].directory
        return homes

    def _topics(self, metadata: ClusterMetadata) -> dict[str, TopicTarget]:
        """Those that exist, with every value of their configuration that is not Kafka's default."""
        there = [name for name, topic in metadata.topics.items() if not topic.error and not name.startswith("__")]
        if not there:
            return {}
        asked = [{"resource_type": _TOPIC, "resource_name": name, "configuration_keys": None} for name in there]
        found = {}
        for result in self._cluster.ask_any(ApiKey.DESCRIBE_CONFIGS, {"resources": asked}).results:
            check_answer(result.error_code, f"configuration of topic {result.resource_name}", result.error_message)
            config = {one.name: one.value for one in result.configs if one.config_source != _DEFAULT and one.value}
            partitions = len(metadata.topics[result.resource_name].partitions)
            found[result.resource_name] = TopicTarget(partitions, config)
        return found

    def _create(self, name: str, partitions: int | None, config: Mapping[str, str]) -> None:
        LogConfig.from_mapping(config)
        create_topic(self._cluster, name, partitions, config)
        retries = Retries(self._config, self._config.delivery_timeout)
        while not self._is_there(name):
            retries.wait(f"{self._names_of_directories} do not get the partitions of the new topic {name}")

    def _is_there(self, name: str) -> bool:
        metadata = self._cluster.metadata([name])
        topic, homes = metadata.topics[name], self._homes(metadata)
        led = {owner.node_id for owner in self._owners}
        return not topic.error and all(
            state.leader >= 0 and (state.leader not in led or TopicPartition(name, number) in homes)
            for number, state in topic.partitions.items()
        )

    # Commit

    def commit(
        self,
        job: str,
        application: str,
        version: int,
        parts: Sequence[StagedPart],
        *,
        also: Sequence[str] = (),
        allow_foreign: bool = False,
        intake: Intake = NO_INTAKE,
    ) -> CommitResult:
        """Make the staged ``parts`` visible together, in this order, once for (application, version); end the job.

        The marks of ``intake`` are in the ledger of the first directory if and only if the job has committed.
        """
        del allow_foreign

        def write(transaction: Transaction) -> None:
            if intake != NO_INTAKE:  # the transaction has fenced by now whoever would end the intake
                self._owners[0].begin_intake(job, application, version, intake)
                self._witness(job, application).set_in(transaction, _COMMITTED)
            if parts:
                self._write(transaction, parts)

        try:
            if application.startswith(JOB):
                is_new = bool(parts) or intake != NO_INTAKE
                if is_new:
                    self._commit_nameless(application, write)
            else:
                is_new = self._commit_named(job, application, version, write)
        except (SeglogError, OSError):
            if intake != NO_INTAKE:
                with suppress(SeglogError):
                    self._settle(job)
            raise
        if intake != NO_INTAKE:
            self._owners[0].end_intake(job, committed=is_new)
        for one in {job, *also}:
            self._remove_job(one)
        return CommitResult(sum(part.records for part in parts) if is_new else 0, already=not is_new)

    def _commit_nameless(self, application: str, write: Callable[[Transaction], None]) -> None:
        transaction = Transaction(self._cluster, self._names(application).committer)
        transaction.begin()
        try:
            write(transaction)
        except BaseException:
            with suppress(RequestFailedError):
                transaction.abort()
            raise
        transaction.commit()

    def _commit_named(self, job: str, application: str, version: int, write: Callable[[Transaction], None]) -> bool:
        """Whether this commit has decided the version; if not, an earlier one has."""
        last = self._note(application)
        consecutive = application.startswith(_QUERY)

        def choose(value: MarkValue | None) -> MarkValue | None:
            mark = read_mark(value)
            known = _newest(mark, last)
            if is_decided(known, version, consecutive=consecutive):
                return None
            problem = missing_before(known, version) if consecutive else None
            if problem is not None:
                if self._options.fail_on_data_loss:
                    raise BatchMarkError(problem)
                _log.warning("seglog: %s", problem)
            generation = generation_for(mark, job)
            return decide(mark, BatchMark(batch=version, job=job, run=job, generation=generation)).to_value()

        chosen = read_mark(self._mark(application).change(choose, write))
        return chosen is not None and chosen.job == job

    def _write(self, transaction: Transaction, parts: Sequence[StagedPart]) -> None:
        topics = {part.topic for part in parts}
        metadata = self._cluster.metadata(topics)
        sizes = {
            name: LogConfig.from_mapping(target.config).segment_bytes for name, target in self._topics(metadata).items()
        }
        write_staged(transaction, self._config, self._owners, metadata, parts, sizes)

    def _is_adopted(self, application: str, version: int) -> bool:
        known = _newest(read_mark(self._mark(application).read()), self._note(application))
        return is_decided(known, version, consecutive=False)

    def _note(self, application: str) -> int:
        """The last version in any ledger, -1 if there is none."""
        return max(owner.note(application) for owner in self._owners)

    def _names(self, application: str) -> SinkNames:
        """Those of the same query or job when it writes through brokers: it may go on in the other way."""
        kind, _, name = application.partition(":")
        return SinkNames(self._options.prefix, name if application.startswith(_QUERY) else f"{kind}-{name}")

    def _mark(self, application: str) -> GroupMark:
        names = self._names(application)
        return self._group_mark(names.group, names.committer, self._versions(application))

    def _versions(self, application: str) -> MarkTopic | None:
        """Where the versions of an application are remembered; None for a query."""
        return None if application.startswith(_QUERY) else MarkTopic(self._cluster, self._options.txn_topic)

    def _group_mark(self, group: str, committer: str, versions: MarkTopic | None = None) -> GroupMark:
        topic = self._options.mark_topic
        assert topic is not None
        place, timeout = TopicPartition(topic, 0), self._config.transaction_timeout
        return GroupMark(self._cluster, group, committer, place, topic=versions, timeout=timeout)

    # Files that a job has read (`seglog.storage.adopt.open_intakes`)

    def settle_intakes(self, topic: str) -> None:
        """End the intakes of jobs into ``topic`` that have died in their commit, as their transactions have ended.

        Raises `AdoptError` if a job commits files to the topic now, or if it is not known any more whether it did.
        """
        for intake in self._open_intakes():
            if topic not in intake.topics:
                continue
            owner = _owner_in(intake.job)
            if owner not in {None, os.getpid()} and not _ended({owner}):
                raise AdoptError(f"process {owner} commits files to topic {topic} now: run this job again after it")
            self._settle(intake.job)

    def _open_intakes(self) -> tuple[OpenIntake, ...]:
        return read_ledger(self._fs, self.directory).open_intakes

    def _settle(self, job: str) -> None:
        """Fence the job, and end its intake by its witness, if the intake has begun."""
        for intake in self._open_intakes():
            if intake.job != job:
                continue
            committed = self._witness(job, intake.application).read_fenced() is not None
            if not committed:
                self._check_remembered(intake)
            self._owners[0].end_intake(job, committed=committed)

    def _witness(self, job: str, application: str) -> GroupMark:
        """An offset that the job's transaction commits, of a group that no other job has."""
        names = self._names(application)
        return self._group_mark(SinkNames(self._options.prefix, f"files-{job}").group, names.committer)

    def _check_remembered(self, intake: OpenIntake) -> None:
        """`AdoptError` if brokers may have forgotten the job's witness."""
        node = self._owners[0].node_id
        asked = {"resource_type": _BROKER, "resource_name": str(node), "configuration_keys": [_RETENTION]}
        address = self._cluster.metadata(()).brokers[node]
        (resource,) = self._cluster.ask_at(address, ApiKey.DESCRIBE_CONFIGS, {"resources": [asked]}).results
        kept = [int(one.value) for one in resource.configs if one.name == _RETENTION and one.value]
        age = SystemClock().now_ms() - intake.begun_ms
        if age < min(kept, default=0) * 60_000:
            return
        topics, (first, *_) = ", ".join(sorted(intake.topics)), intake.marks
        problem = (
            f"job {intake.job} died {age // 3_600_000} hours ago while it committed files to topic {topics}, and after "
            f"{_RETENTION} brokers forget whether it has committed. Check whether the last records of {first.path} are "
            "there"
        )
        if self._options.fail_on_data_loss:
            raise AdoptError(f"{problem}; if they are not, go on with failOnDataLoss=false")
        _log.warning("seglog: %s", problem)

    # Staging

    def abort(self, *jobs: str) -> None:
        """End jobs without a commit."""
        for job in jobs:
            self._remove_job(job)

    def _remove_job(self, job: str) -> None:
        for staging in self._stagings():
            path = os.path.join(staging, job)
            if self._fs.exists(path):
                remove_quietly(self._fs, path)

    def _remove_orphans(self) -> None:
        """Remove what jobs have staged whose driver has ended."""
        found = {job for staging in self._stagings() for job in self._fs.listdir(staging)}
        owners = {job: owner for job in found if (owner := _owner_in(job)) is not None}
        gone = _ended(set(owners.values()))
        self.abort(*(job for job, owner in owners.items() if owner in gone))

    def _stagings(self) -> list[str]:
        paths = [
            os.path.join(owner.directory, name, OWN_DIRECTORY, STAGING)
            for owner in self._owners
            for name in self._fs.listdir(owner.directory)
            if name.rpartition("-")[2].isdecimal()
        ]
        return [path for path in paths if self._fs.exists(path)]


def _owner_in(job: str) -> int | None:
    """The driver's process, which a job has in its name."""
    end = job.rpartition("-")[2]
    return int(end) if end.isdecimal() and int(end) else None


def _ended(processes: Collection[int]) -> set[int]:
    with closing(ProcessWatch()) as watch:
        return watch.gone(processes)


def _newest(mark: BatchMark | None, last: int) -> BatchMark | None:
    """The mark, or what the directory's ledger says if that is newer: the broker was not running then."""
    if last < 0 or (mark is not None and mark.batch >= last):
        return mark
    return BatchMark(batch=last, job="", run="", generation=0)
