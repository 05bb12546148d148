"""The composition root of a broker that is alone: from a configuration to a broker that answers, top to bottom. What is
opened last is closed first."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Awaitable, Mapping
from functools import partial
from typing import Final

from seglog.broker.changes import LocalChanges
from seglog.broker.groups import TopicOfOffsets, group_settings
from seglog.broker.identity import Identity
from seglog.broker.producers import ProducerIds
from seglog.broker.requests import Answer, Context, Handler
from seglog.broker.serving import Serving
from seglog.broker.settings import Configuration
from seglog.broker.topics import LocalTopics
from seglog.broker.warm import warm_up
from seglog.broker.watermarks import Watermarks
from seglog.cluster.embedded import EmbeddedStore
from seglog.cluster.store import ANY_VERSION, NameExistsError, NoSuchNameError, StoreError, Versioned
from seglog.coordinators.runtime import GroupCoordinator
from seglog.core.broker_config import BrokerConfig
from seglog.protocol.apis import ApiKey
from seglog.protocol.messages import Message
from seglog.replication.group_flushes import GroupFlushes
from seglog.storage.directory.cluster_mark import check_unmarked
from seglog.storage.directory.contents import resolve
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.formats.checkpoints import encode_id
from seglog.storage.formats.paths import FORMER_STORE, STORE

_log: Final = logging.getLogger("seglog.broker")
_LASTING: Final = ("config", "producer-ids")
"""What a broker that is alone has to remember beside its topics."""


class Node(Serving):
    """A broker that is alone."""

    directory: LogDir
    topics: LocalTopics

    @property
    def paths(self) -> list[str]:
        return [self.directory.path]

    async def _start(self) -> None:
        config = self.config
        await self._open_directory(config)
        await self._open_store()
        meta = self.directory.meta
        node_id, cluster_id = meta.node_id or 0, meta.cluster_id or ""
        self.identity = Identity(node_id=node_id, cluster_id=cluster_id, rack=config.broker_rack or None)
        static = {
            **config.given,
            "node.id": str(node_id),
            "broker.id": str(node_id),
            "log.dirs": self.directory.path,
        }
        self.configuration = Configuration(BrokerConfig.from_mapping(static), self.store, node_id)
        await self.configuration.load()
        if self.configuration.current.directory != self.directory.config:
            self.directory.reconfigure(self.configuration.current.directory)

        flushes = GroupFlushes(self._ground.workers)
        self._parts.push_async_callback(flushes.close)
        self.topics = LocalTopics(self.directory, flushes.due)
        self._watch_disk()
        self._publish_watermarks()
        self.changes = LocalChanges(self.topics, self._ground)
        self._parts.push_async_callback(self.changes.close)
        ids = ProducerIds(self.store)
        self._parts.push_async_callback(ids.close)
        settings = group_settings(self.configuration.current)
        topic = TopicOfOffsets(self.topics, self.changes, settings, self.identity)
        self.groups = GroupCoordinator(topic, settings, ground=self._ground)
        self.changes.deleted = lambda gone: self.groups.topics_deleted([(gone.name, gone.topic_id)])
        self._begin("groups", self.groups.run())
        await self._open_to_clients(ids)
        await self._register()
        self._begin("warm-up", warm_up())

    def _more_handlers(self) -> Mapping[int, Handler]:
        """Few ask a node that is alone for these: what answers them is imported when somebody does."""
        made: dict[int, Handler] = {}

        def handler(key: int) -> Handler:
            def handle(request: Message, context: Context) -> Answer | Awaitable[Answer]:
                if not made:
                    from seglog.broker.local_moves import handlers

                    made.update(handlers(self.topics, self.identity))
                return made[key](request, context)

            return handle

        keys = (ApiKey.ELECT_LEADERS, ApiKey.ALTER_PARTITION_REASSIGNMENTS, ApiKey.LIST_PARTITION_REASSIGNMENTS)
        return {key: handler(key) for key in keys}

    async def _open_directory(self, config: BrokerConfig) -> None:
        node_id = config.node_id if config.node_id >= 0 else config.broker_id
        ground = self._ground
        await ground.workers.run(partial(check_unmarked, ground.fs, [resolve(config.data_dir)]))
        self.directory = await ground.workers.run(
            partial(
                LogDir.open,
                config.data_dir,
                config=config.directory,
                background=True,
                cluster_id=self._cluster_id,
                node_id=node_id if node_id >= 0 else None,
                fs=ground.fs,
                clock=ground.clock,
                rng=ground.rng,
                make_worker=ground.make_worker,
            )
        )
        self._parts.push_async_callback(ground.workers.run, self.directory.close)

    def _watch_disk(self) -> None:
        """Have `_disk_failed` called, also if it has failed while the directory was opened."""
        loop, health = asyncio.get_running_loop(), self.directory.health

        def failed(error: OSError) -> None:  # in any thread
            loop.call_soon_threadsafe(self._disk_failed, error)

        health.on_failure = failed
        if health.failure is not None:
            failed(health.failure)

    async def _open_store(self) -> None:
        """Beside the logs."""
        fs, former = self._ground.fs, os.path.join(self.directory.path, FORMER_STORE)

        def read() -> Mapping[str, Versioned]:
            if not fs.exists(former):
                return {}
            from seglog.cluster.former_store import read_former  # and SQLite with it

            return read_former(fs, former)

        path = os.path.join(self.directory.path, STORE)
        self.store = await EmbeddedStore.open(path, self._ground, lasting=_LASTING, former=read)
        self._parts.push_async_callback(self.store.close)

    def _publish_watermarks(self) -> None:
        watermarks = Watermarks(self._ground.fs, self.directory.path)
        watermarks.open(self.topics)
        self._parts.callback(watermarks.close)
        self.topics.shown, self.topics.hidden = watermarks.show, watermarks.hide

    async def _register(self) -> None:
        """Tell the cluster that this broker is there. The directory is ours alone: what an earlier start of it has left
        in this place is over."""
        meta = self.directory.meta
        directory_id = encode_id(meta.directory_id) if meta.directory_id is not None else ""
        value = {
            "directory.id": directory_id,
            "listeners": {name: str(address) for name, address in self.identity.advertised.items()},
            "rack": self.identity.rack,
        }
        data = json.dumps(value, sort_keys=True).encode()
        name = f"brokers/{self.identity.node_id}"
        session = await self.store.session(self.config.broker_session_timeout_ms, self._session_lost)
        found = await self.store.get(name)
        if found is not None:
            if json.loads(found.value).get("directory.id") != directory_id:
                raise StoreError(f"another broker has node.id {self.identity.node_id}")
            with contextlib.suppress(NoSuchNameError):  # the lease of the earlier start ends just now
                await self.store.delete(name, ANY_VERSION)
        await self.store.create(name, data, session)
        try:
            await self.store.create("cluster", json.dumps({"cluster.id": self.identity.cluster_id}).encode())
        except NameExistsError:
            return

    def _disk_failed(self, error: OSError) -> None:
        """From here on every partition answers with KAFKA_STORAGE_ERROR, and metadata know of no leader."""
        _log.critical("%s is out of use until the next start: %s", self.directory.path, error)
        for topic in self.topics:
            for partition in topic.partitions:
                if partition is not None:
                    partition.wake()

    def _session_lost(self) -> None:
        _log.error("the lease of node %d in the metadata store has ended", self.identity.node_id)
