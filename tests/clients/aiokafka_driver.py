"""aiokafka from 0.8: ``python -m tests.clients.aiokafka_driver BOOTSTRAP``."""

from __future__ import annotations

import asyncio
import importlib
import logging
import sys
import warnings
from collections.abc import Callable, Coroutine
from typing import Any

from tests.clients.driving import Job, Orders, Watch, name_of, say, say_record

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    aiokafka: Any = importlib.import_module("aiokafka")
    admin_module: Any = importlib.import_module("aiokafka.admin")
    errors: Any = importlib.import_module("aiokafka.errors")
    # Up to 0.8 it was made of kafka-python's parts.
    _PARTS = "kafka" if aiokafka.__version__.startswith("0.8.") else "aiokafka"
    range_module: Any = importlib.import_module(f"{_PARTS}.coordinator.assignors.range")

_SECONDS = 30.0
_orders = Orders()


class Driver:
    def __init__(self, bootstrap: str) -> None:
        self._config: dict[str, Any] = {"bootstrap_servers": bootstrap}

    async def produce(self, job: Job) -> None:
        config: dict[str, Any] = {
            "acks": {-1: "all"}.get(job.get("acks", -1), job.get("acks", -1)),
            "compression_type": None if job.get("codec", "none") == "none" else job["codec"],
            "max_request_size": job.get("max_request", 1_000_000),
            "request_timeout_ms": job.get("timeout_ms", 60_000),
            "enable_idempotence": job.get("idempotent", False),
            "linger_ms": job.get("linger_ms", 5),
        }
        producer = aiokafka.AIOKafkaProducer(**self._config, **config)
        await producer.start()
        try:
            sent = []
            records = _orders.records(job)
            # The iterator waits where there is a rate: not in the loop's own thread.
            while (found := await asyncio.to_thread(next, records, None)) is not None:
                number, record = found
                try:
                    one = await producer.send(
                        job["topic"],
                        record.value,
                        record.key,
                        record.partition,
                        timestamp_ms=record.timestamp,
                        headers=record.headers,
                    )
                except errors.KafkaError as error:
                    say("refused", number, name_of(error))
                else:
                    one.add_done_callback(_tell(number))
                    sent.append(one)
            await asyncio.wait_for(
                asyncio.gather(*sent, return_exceptions=True), _SECONDS + job.get("timeout_ms", 60_000) / 1000
            )
        finally:
            await producer.stop()

    async def consume(self, job: Job) -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            **self._config,
            auto_offset_reset=job.get("reset", "earliest"),
            enable_auto_commit=False,
            group_id=None,
            fetch_max_wait_ms=100,
        )
        await consumer.start()
        try:
            places = {_place(job["topic"], int(one)): start for one, start in job["starts"].items()}
            consumer.assign(list(places))
            for place, start in places.items():
                if start == "earliest":
                    await consumer.seek_to_beginning(place)
                elif start == "latest":
                    await consumer.seek_to_end(place)
                else:
                    consumer.seek(place, start)
            left = job["count"]
            while left > 0 and not _orders.stop.is_set():
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    for one in records[:left]:
                        say_record(one.partition, one.offset, one.timestamp, one.key, one.value, one.headers)
                        left -= 1
        finally:
            await consumer.stop()

    async def member(self, job: Job) -> None:
        static = {"group_instance_id": job["instance"]} if "instance" in job else {}
        consumer = aiokafka.AIOKafkaConsumer(
            job["topic"],
            **self._config,
            **static,
            group_id=job["group"],
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=job["session_ms"],
            heartbeat_interval_ms=min(job["session_ms"] // 6, 500),
            max_poll_interval_ms=job.get("poll_ms", 60_000),
            max_poll_records=1,
            partition_assignment_strategy=(range_module.RangePartitionAssignor,),
        )
        await consumer.start()
        watch = Watch()
        while not _orders.stop.is_set():
            found = await consumer.getmany(timeout_ms=50)
            watch.look(consumer.assignment())
            for records in found.values():
                for record in records:
                    say("read", record.partition, record.offset)
                    if job.get("hold") == record.offset:
                        await asyncio.to_thread(_orders.go.wait)
                    try:
                        await consumer.commit()
                    except errors.KafkaError as error:
                        say("not committed", name_of(error))
                    else:
                        say("committed", record.partition, record.offset)
        await consumer.stop()

    async def transact(self, job: Job) -> None:
        producer = aiokafka.AIOKafkaProducer(**self._config, transactional_id=job["topic"], retry_backoff_ms=10)
        try:
            await asyncio.wait_for(producer.start(), _SECONDS)
            for number, commit in enumerate(job["commits"]):
                await producer.begin_transaction()
                await producer.send(job["topic"], b"%d" % number, partition=0)
                await (producer.commit_transaction() if commit else producer.abort_transaction())
                say("ended", number)
        finally:
            await producer.stop()

    async def relay(self, job: Job) -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            job["source"],
            **self._config,
            group_id=job["group"],
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
            session_timeout_ms=job["session_ms"],
            heartbeat_interval_ms=job["session_ms"] // 6,
        )
        producer = aiokafka.AIOKafkaProducer(**self._config, transactional_id=job["group"])
        await consumer.start()
        await producer.start()
        relayed = 0
        while not _orders.stop.is_set():
            found = await consumer.getmany(timeout_ms=100, max_records=20)
            if not found:
                continue
            await producer.begin_transaction()
            for place, records in found.items():
                for record in records:
                    await producer.send(job["target"], record.value, partition=place.partition)
            offsets = {place: records[-1].offset + 1 for place, records in found.items()}
            await producer.send_offsets_to_transaction(offsets, job["group"])
            if relayed >= job.get("hold", sys.maxsize):
                await producer.flush()
                say("held")
                await asyncio.to_thread(_orders.go.wait)
            await producer.commit_transaction()
            count = sum(map(len, found.values()))
            relayed += count
            say("relayed", count)
        await producer.stop()
        await consumer.stop()

    async def admin(self, job: Job) -> None:
        admin = admin_module.AIOKafkaAdminClient(**self._config)
        if job["op"] == "delete_group" or (job["op"] == "delete_records" and not hasattr(admin, "delete_records")):
            say("cannot")
            return
        await admin.start()
        try:
            say("result", await getattr(self, f"_{job['op']}")(admin, job))
        finally:
            await admin.close()

    async def _create(self, admin: Any, job: Job) -> str:
        new = admin_module.NewTopic(job["topic"], job["partitions"], 1, topic_configs=job.get("config", {}))
        return _codes((await admin.create_topics([new])).topic_errors)

    async def _delete(self, admin: Any, job: Job) -> str:
        answer = await admin.delete_topics([job["topic"]])
        return _codes(answer.topic_error_codes)

    async def _grow(self, admin: Any, job: Job) -> str:
        answer = await admin.create_partitions({job["topic"]: _part("new_partitions").NewPartitions(job["total"])})
        return _codes(answer.topic_errors)

    async def _alter(self, admin: Any, job: Job) -> str:
        kind = _part("config_resource").ConfigResourceType.TOPIC
        resource = _part("config_resource").ConfigResource(kind, job["topic"], configs=job["config"])
        (answer,) = await admin.alter_configs([resource])
        return _codes([(job["topic"], resource[0]) for resource in answer.resources])

    async def _config_of(self, admin: Any, job: Job) -> dict[str, str]:
        kind = _part("config_resource").ConfigResourceType.TOPIC
        (answer,) = await admin.describe_configs([_part("config_resource").ConfigResource(kind, job["topic"])])
        values = {entry[0]: entry[1] for entry in answer.resources[0][4]}
        return {name: values[name] for name in job["names"]}

    async def _partitions(self, admin: Any, job: Job) -> int:
        (topic,) = await admin.describe_topics([job["topic"]])
        if topic["error_code"]:
            raise errors.for_code(topic["error_code"])
        return len(topic["partitions"])

    async def _groups(self, admin: Any, _job: Job) -> list[str]:
        return sorted(name for name, *_ in await admin.list_consumer_groups())

    async def _group(self, admin: Any, job: Job) -> list[Any]:
        (answer,) = await admin.describe_consumer_groups([job["group"]])
        (group,) = answer.groups
        return [group[2], group[3], len(group[5])]

    async def _offsets(self, admin: Any, job: Job) -> dict[int, int]:
        found = await admin.list_consumer_group_offsets(job["group"])
        return {place.partition: one.offset for place, one in found.items()}

    async def _delete_records(self, admin: Any, job: Job) -> int:
        place = _place(job["topic"], 0)
        wanted = _part("records_to_delete").RecordsToDelete(before_offset=job["before"])
        return int((await admin.delete_records({place: wanted}))[place])

    async def _at(self, _admin: Any, job: Job) -> list[int]:
        """The offsets of a time, of the beginning, and of the end, of partition 0."""
        consumer = aiokafka.AIOKafkaConsumer(**self._config)
        await consumer.start()
        try:
            place = _place(job["topic"], 0)
            found = (await consumer.offsets_for_times({place: job["time"]}))[place]
            low = (await consumer.beginning_offsets([place]))[place]
            return [found.offset, low, (await consumer.end_offsets([place]))[place]]
        finally:
            await consumer.stop()


def _part(name: str) -> Any:
    """A module of its admin, or of that whose parts it was made of."""
    return importlib.import_module(f"{_PARTS}.admin.{name}")


def _place(topic: str, partition: int) -> Any:
    structs: Any = importlib.import_module("aiokafka.structs")
    return structs.TopicPartition(topic, partition)


def _tell(number: int) -> Callable[[Any], None]:
    def tell(sent: Any) -> None:
        error = None if sent.cancelled() else sent.exception()
        if sent.cancelled() or error is not None:
            say("refused", number, "cancelled" if error is None else name_of(error))
        elif sent.result() is None:  # acks=0: nobody knows where it is
            say("acked", number, -1, -1)
        else:
            say("acked", number, sent.result().partition, sent.result().offset)

    return tell


def _codes(answers: Any) -> str:
    """Its admin hands the codes over as they are."""
    for _, code, *_ in answers:
        if code:
            raise errors.for_code(code)
    return "ok"


def _run(job: Callable[[Job], Coroutine[Any, Any, None]]) -> Callable[[Job], None]:
    return lambda order: asyncio.run(job(order))


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    driver = Driver(sys.argv[1])
    verbs = {
        name: _run(getattr(driver, name)) for name in ("produce", "consume", "member", "transact", "relay", "admin")
    }
    say("client", aiokafka.__version__)
    _orders.work(verbs, (errors.KafkaError, asyncio.TimeoutError))
