"""kafka-python from 1.4: ``python -m tests.clients.kafka_python_driver BOOTSTRAP``."""

from __future__ import annotations

import importlib
import logging
import sys
import warnings
from collections.abc import Callable
from typing import Any

from tests.clients.driving import Job, Orders, Watch, name_of, say, say_record

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    kafka: Any = importlib.import_module("kafka")
    admin_module: Any = importlib.import_module("kafka.admin")
    errors: Any = importlib.import_module("kafka.errors")

_SECONDS = 30.0
_VERSION = tuple(int(part) for part in kafka.__version__.split(".")[:2])
_orders = Orders()
# What kafka-python calls differently since 3.0.
_NEW = _VERSION >= (3, 0)


class Driver:
    def __init__(self, bootstrap: str) -> None:
        self._config: dict[str, Any] = {"bootstrap_servers": bootstrap, "reconnect_backoff_max_ms": 200}
        if not _NEW:
            self._config["api_version_auto_timeout_ms"] = 30_000  # after two seconds there would be no broker for it
        self._admin: Any = None

    def produce(self, job: Job) -> None:
        config: dict[str, Any] = {
            "acks": {-1: "all"}.get(job.get("acks", -1), job.get("acks", -1)),
            "compression_type": None if job.get("codec", "none") == "none" else job["codec"],
            "max_request_size": job.get("max_request", 1_000_000),
            "max_block_ms": job.get("timeout_ms", 60_000),
            "linger_ms": job.get("linger_ms", 5),
            "retries": 1_000,
            "max_in_flight_requests_per_connection": 1,
        }
        if _NEW:
            config["enable_idempotence"] = job.get("idempotent", False)
            config["delivery_timeout_ms"] = job.get("timeout_ms", 60_000) + 30_000
            if config["enable_idempotence"]:
                config["max_in_flight_requests_per_connection"] = 5
        elif job.get("idempotent"):
            say("cannot")
            return
        producer = kafka.KafkaProducer(**self._config, **config)

        def acked(number: int) -> Callable[[Any], None]:
            return lambda found: say("acked", number, found.partition, found.offset)

        def refused(number: int) -> Callable[[BaseException], None]:
            return lambda error: say("refused", number, name_of(error))

        for number, record in _orders.records(job):
            try:
                sent = producer.send(
                    job["topic"],
                    record.value,
                    record.key,
                    record.headers,
                    partition=record.partition,
                    timestamp_ms=record.timestamp,
                )
            except errors.KafkaError as error:
                say("refused", number, name_of(error))
            else:
                sent.add_callback(acked(number)).add_errback(refused(number))
        producer.flush(_SECONDS + job.get("timeout_ms", 60_000) / 1000)
        producer.close()

    def consume(self, job: Job) -> None:
        consumer = kafka.KafkaConsumer(
            **self._config,
            auto_offset_reset=job.get("reset", "earliest"),
            enable_auto_commit=False,
            group_id=None,
            fetch_max_wait_ms=100,
            max_poll_records=1000,
        )
        places = {kafka.TopicPartition(job["topic"], int(one)): start for one, start in job["starts"].items()}
        consumer.assign(list(places))
        for place, start in places.items():
            if start == "earliest":
                consumer.seek_to_beginning(place)
            elif start == "latest":
                consumer.seek_to_end(place)
            else:
                consumer.seek(place, start)
        left = job["count"]
        try:
            while left > 0 and not _orders.stop.is_set():
                for records in consumer.poll(timeout_ms=100).values():
                    for one in records[:left]:
                        say_record(one.partition, one.offset, one.timestamp, one.key, one.value, one.headers)
                        left -= 1
        finally:
            consumer.close()

    def member(self, job: Job) -> None:
        config: dict[str, Any] = {
            "group_id": job["group"],
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "session_timeout_ms": job["session_ms"],
            "heartbeat_interval_ms": min(job["session_ms"] // 6, 500),
            "max_poll_interval_ms": job.get("poll_ms", 60_000),
            "max_poll_records": 1,
        }
        if "instance" in job:
            config["group_instance_id"] = job["instance"]
        if job.get("cooperative"):
            module: Any = importlib.import_module("kafka.coordinator.assignors.cooperative_sticky")
            config["partition_assignment_strategy"] = [module.CooperativeStickyAssignor]
        consumer = kafka.KafkaConsumer(**self._config, **config)
        # A leader that joins before it knows its topic assigns nothing of it, until its metadata is old: with Kafka
        # 18 times of 25, with us 24 times. One that has asked knows it.
        consumer.partitions_for_topic(job["topic"])
        consumer.subscribe([job["topic"]])
        watch = Watch()
        while not _orders.stop.is_set():
            # A poll that ends while it joins may leave 3.0 joining once more behind its own back: it then reads, and
            # refuses all commits itself, for ever.
            found = consumer.poll(timeout_ms=50 if consumer.assignment() else 2_000)
            watch.look(consumer.assignment())
            for records in found.values():
                for record in records:
                    say("read", record.partition, record.offset)
                    if job.get("hold") == record.offset:
                        _orders.go.wait()
                    try:
                        consumer.commit()
                    except errors.KafkaError as error:
                        say("not committed", name_of(error))
                    else:
                        say("committed", record.partition, record.offset)
        consumer.close()

    def transact(self, job: Job) -> None:
        producer = kafka.KafkaProducer(**self._config, transactional_id=job["topic"])
        try:
            producer.init_transactions()
            for number, commit in enumerate(job["commits"]):
                producer.begin_transaction()
                producer.send(job["topic"], b"%d" % number, partition=0)
                if commit:
                    producer.commit_transaction()
                else:
                    producer.abort_transaction()
                say("ended", number)
        finally:
            producer.close()

    def relay(self, job: Job) -> None:
        consumer = kafka.KafkaConsumer(
            **self._config,
            group_id=job["group"],
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
            session_timeout_ms=job["session_ms"],
            heartbeat_interval_ms=job["session_ms"] // 6,
            max_poll_records=20,
        )
        consumer.partitions_for_topic(job["source"])  # as in `member`
        consumer.subscribe([job["source"]])
        producer = kafka.KafkaProducer(**self._config, transactional_id=job["group"])
        producer.init_transactions()
        relayed = 0
        while not _orders.stop.is_set():
            found = consumer.poll(timeout_ms=50 if consumer.assignment() else 2_000)
            if not found:
                continue
            producer.begin_transaction()
            offsets: dict[Any, Any] = {}
            for place, records in found.items():
                for record in records:
                    producer.send(job["target"], record.value, partition=record.partition)
                offsets[place] = kafka.OffsetAndMetadata(records[-1].offset + 1, "", -1)
            producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
            if relayed >= job.get("hold", sys.maxsize):
                producer.flush(_SECONDS)
                say("held")
                _orders.go.wait()
            producer.commit_transaction()
            count = sum(map(len, found.values()))
            relayed += count
            say("relayed", count)
        producer.close()
        consumer.close()

    def admin(self, job: Job) -> None:
        if self._admin is None:
            self._admin = admin_module.KafkaAdminClient(**self._config)
        needs = _NEEDS.get(job["op"], ())
        if needs and not any(hasattr(self._admin, name) for name in needs):
            say("cannot")
        else:
            say("result", getattr(self, f"_{job['op']}")(job))

    def _create(self, job: Job) -> str:
        new = admin_module.NewTopic(job["topic"], job["partitions"], 1, topic_configs=job.get("config", {}))
        self._admin.create_topics([new])
        return "ok"

    def _delete(self, job: Job) -> str:
        self._admin.delete_topics([job["topic"]])
        return "ok"

    def _grow(self, job: Job) -> str:
        self._admin.create_partitions({job["topic"]: admin_module.NewPartitions(job["total"])})
        return "ok"

    def _alter(self, job: Job) -> str:
        kind = admin_module.ConfigResourceType.TOPIC
        wanted = admin_module.ConfigResource(kind, job["topic"], configs=job["config"])
        answer = self._admin.alter_configs([wanted])
        # It hands the errors over as they are, and differently since 3.0.
        if _NEW:
            (named,) = answer.values()
            _check(named[job["topic"]])
        elif code := answer.resources[0][0]:
            raise errors.for_code(code)
        return "ok"

    def _config_of(self, job: Job) -> dict[str, str]:
        kind = admin_module.ConfigResourceType.TOPIC
        wanted = admin_module.ConfigResource(kind, job["topic"])
        if _NEW:
            found = self._admin.describe_configs([wanted], config_filter="all")
            entries = found["TOPIC" if "TOPIC" in found else "topic"][job["topic"]]
            return {name: entries[name]["value"] for name in job["names"]}
        answers = self._admin.describe_configs([wanted])
        answer = answers[0] if isinstance(answers, list) else answers
        values = {entry[0]: entry[1] for entry in answer.resources[0][4]}
        return {name: values[name] for name in job["names"]}

    def _partitions(self, job: Job) -> int:
        consumer = kafka.KafkaConsumer(**self._config)
        found = consumer.partitions_for_topic(job["topic"])
        consumer.close()
        if not found:
            raise errors.UnknownTopicOrPartitionError(job["topic"])
        return len(found)

    def _groups(self, _job: Job) -> list[str]:
        if _NEW:
            return sorted(group["group_id"] for group in self._admin.list_groups())
        return sorted(name for name, _ in self._admin.list_consumer_groups())

    def _group(self, job: Job) -> list[Any]:
        if _NEW:
            (found,) = self._admin.describe_groups([job["group"]]).values()
            return [found["group_state"], found["protocol_type"], len(found["members"])]
        (group,) = self._admin.describe_consumer_groups([job["group"]])
        _, _, state, protocol, _, members, *_ = group
        return [state, protocol, len(members)]

    def _offsets(self, job: Job) -> dict[int, int]:
        if _NEW:
            (found,) = self._admin.list_group_offsets({job["group"]: None}).values()
        else:
            found = self._admin.list_consumer_group_offsets(job["group"])
        return {place.partition: one.offset for place, one in found.items()}

    def _delete_group(self, job: Job) -> str:
        if _NEW:
            _check(self._admin.delete_groups([job["group"]])[job["group"]])
            return "ok"
        for _, error in self._admin.delete_consumer_groups([job["group"]]):
            if error is not errors.NoError:
                raise error
        return "ok"

    def _delete_records(self, job: Job) -> int:
        place = kafka.TopicPartition(job["topic"], 0)
        return int(self._admin.delete_records({place: job["before"]})[place]["low_watermark"])

    def _at(self, job: Job) -> list[int]:
        """The offsets of a time, of the beginning, and of the end, of partition 0."""
        consumer = kafka.KafkaConsumer(**self._config)
        place = kafka.TopicPartition(job["topic"], 0)
        found = consumer.offsets_for_times({place: job["time"]})[place]
        low, high = consumer.beginning_offsets([place])[place], consumer.end_offsets([place])[place]
        consumer.close()
        return [found.offset, low, high]


def _check(told: str) -> None:
    """``OK``, or an error as text: ``[Error 40] InvalidConfigurationError: ...``, or its name alone."""
    name = told.partition("] ")[2].partition(":")[0] or told
    if name != "OK":
        raise getattr(errors, name)(told)


_NEEDS = {
    "delete_records": ("delete_records",),
    "delete_group": ("delete_groups", "delete_consumer_groups"),
}

if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    driver = Driver(sys.argv[1])
    verbs = {name: getattr(driver, name) for name in ("produce", "consume", "member", "transact", "relay", "admin")}
    say("client", kafka.__version__)
    _orders.work(verbs, (errors.KafkaError,))
