"""confluent-kafka, and with it librdkafka: ``python -m tests.clients.confluent_driver BOOTSTRAP``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from tests.clients.driving import Job, Orders, Watch, name_of, say, say_record

confluent: Any = importlib.import_module("confluent_kafka")
admin_module: Any = importlib.import_module("confluent_kafka.admin")

_SECONDS = 30.0
_QUIET = {"log_level": 0, "reconnect.backoff.max.ms": 200}
_orders = Orders()


class Driver:
    def __init__(self, bootstrap: str) -> None:
        self._config = {"bootstrap.servers": bootstrap, **_QUIET}
        self._admin: Any = None

    def produce(self, job: Job) -> None:
        config = {
            "acks": job.get("acks", -1),
            "compression.type": job.get("codec", "none"),
            "enable.idempotence": job.get("idempotent", False),
            "message.max.bytes": job.get("max_request", 1_000_000),
            "message.timeout.ms": job.get("timeout_ms", 60_000),
            "linger.ms": job.get("linger_ms", 5),
        }
        producer = confluent.Producer({**self._config, **config})

        def told(number: int) -> Callable[[Any, Any], None]:
            def tell(error: Any, message: Any) -> None:
                if error is not None:
                    say("refused", number, error.name())
                else:
                    say("acked", number, message.partition(), message.offset())

            return tell

        for number, record in _orders.records(job):
            if number % 100 == 0 or "rate" in job:
                producer.poll(0)
            more = {} if record.timestamp is None else {"timestamp": record.timestamp}
            producer.produce(
                job["topic"],
                record.value,
                record.key,
                record.partition,
                on_delivery=told(number),
                headers=record.headers,
                **more,
            )
        producer.flush(_SECONDS + job.get("timeout_ms", 60_000) / 1000)

    def consume(self, job: Job) -> None:
        reset = job.get("reset", "earliest")
        config = {
            "group.id": "unused",
            "auto.offset.reset": "error" if reset == "none" else reset,
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
        }
        consumer = confluent.Consumer({**self._config, **config})
        named = {"earliest": confluent.OFFSET_BEGINNING, "latest": confluent.OFFSET_END}
        starts = {int(one): named.get(start, start) for one, start in job["starts"].items()}
        consumer.assign([confluent.TopicPartition(job["topic"], *one) for one in starts.items()])
        left = job["count"]
        while left and not _orders.stop.is_set():
            message = consumer.poll(0.1)
            if message is None:
                continue
            if message.error() is not None:
                say("error", message.error().name(), "")
                break
            timestamp = message.timestamp()[1]
            say_record(
                message.partition(), message.offset(), timestamp, message.key(), message.value(), message.headers()
            )
            left -= 1
        consumer.close()

    def member(self, job: Job) -> None:
        config: dict[str, Any] = {
            "group.id": job["group"],
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "max.poll.interval.ms": job.get("poll_ms", 60_000),
        }
        if "protocol" in job:
            config["group.protocol"] = job["protocol"]
        else:
            config["session.timeout.ms"] = job["session_ms"]
            config["heartbeat.interval.ms"] = min(job["session_ms"] // 6, 500)
            config["partition.assignment.strategy"] = "cooperative-sticky" if job.get("cooperative") else "range"
        if "instance" in job:
            config["group.instance.id"] = job["instance"]
        consumer = confluent.Consumer({**self._config, **config})
        consumer.subscribe([job["topic"]])
        watch = Watch()
        while not _orders.stop.is_set():
            message = consumer.poll(0.05)
            watch.look(consumer.assignment())
            if message is not None and message.error() is None:
                say("read", message.partition(), message.offset())
                if job.get("hold") == message.offset():
                    _orders.go.wait()
                try:
                    consumer.commit(message=message, asynchronous=False)
                except confluent.KafkaException as error:
                    say("not committed", name_of(error))
                else:
                    say("committed", message.partition(), message.offset())
        consumer.close()

    def transact(self, job: Job) -> None:
        producer = confluent.Producer({**self._config, "transactional.id": job["topic"]})
        producer.init_transactions(_SECONDS)
        for number, commit in enumerate(job["commits"]):
            producer.begin_transaction()
            producer.produce(job["topic"], b"%d" % number, partition=0)
            if commit:
                producer.commit_transaction(_SECONDS)
            else:
                producer.abort_transaction(_SECONDS)
            say("ended", number)

    def relay(self, job: Job) -> None:
        config: dict[str, Any] = {
            "group.id": job["group"],
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
        if "protocol" in job:
            config["group.protocol"] = job["protocol"]
        else:
            config |= {"session.timeout.ms": job["session_ms"], "heartbeat.interval.ms": job["session_ms"] // 6}
        consumer = confluent.Consumer({**self._config, **config})
        producer = confluent.Producer({**self._config, "transactional.id": job["group"]})
        producer.init_transactions(_SECONDS)
        consumer.subscribe([job["source"]])
        relayed = 0
        while not _orders.stop.is_set():
            messages = [message for message in consumer.consume(20, 0.1) if message.error() is None]
            if not messages:
                continue
            producer.begin_transaction()
            for message in messages:
                producer.produce(job["target"], message.value(), partition=message.partition())
            offsets = consumer.position(consumer.assignment())
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), _SECONDS)
            if relayed >= job.get("hold", sys.maxsize):
                producer.flush(_SECONDS)
                say("held")
                _orders.go.wait()
            producer.commit_transaction(_SECONDS)
            relayed += len(messages)
            say("relayed", len(messages))
        consumer.close()

    def admin(self, job: Job) -> None:
        if self._admin is None:
            self._admin = admin_module.AdminClient(self._config)
        answer = getattr(self, f"_{job['op']}")
        say("result", answer(job)) if hasattr(self._admin, _NEEDS.get(job["op"], "poll")) else say("cannot")

    def _create(self, job: Job) -> str:
        new = admin_module.NewTopic(job["topic"], job["partitions"], 1, config=job.get("config", {}))
        return _all(self._admin.create_topics([new]))

    def _delete(self, job: Job) -> str:
        return _all(self._admin.delete_topics([job["topic"]]))

    def _grow(self, job: Job) -> str:
        return _all(self._admin.create_partitions([admin_module.NewPartitions(job["topic"], job["total"])]))

    def _alter(self, job: Job) -> str:
        resource = admin_module.ConfigResource(admin_module.RESOURCE_TOPIC, job["topic"], set_config=job["config"])
        return _all(self._admin.alter_configs([resource]))

    def _config_of(self, job: Job) -> dict[str, str]:
        resource = admin_module.ConfigResource(admin_module.RESOURCE_TOPIC, job["topic"])
        (found,) = self._admin.describe_configs([resource]).values()
        entries = found.result(_SECONDS)
        return {name: entries[name].value for name in job["names"]}

    def _partitions(self, job: Job) -> int:
        topic = self._admin.list_topics(job["topic"], timeout=_SECONDS).topics[job["topic"]]
        if topic.error is not None:
            raise confluent.KafkaException(topic.error)
        return len(topic.partitions)

    def _groups(self, _job: Job) -> list[str]:
        return sorted(group.id for group in self._admin.list_groups(timeout=_SECONDS))

    def _group(self, job: Job) -> list[Any]:
        (group,) = self._admin.list_groups(job["group"], timeout=_SECONDS)
        return [group.state, group.protocol_type, len(group.members)]

    def _offsets(self, job: Job) -> dict[int, int]:
        wanted = confluent.ConsumerGroupTopicPartitions(job["group"])
        (found,) = self._admin.list_consumer_group_offsets([wanted]).values()
        return {one.partition: one.offset for one in found.result(_SECONDS).topic_partitions}

    def _delete_group(self, job: Job) -> str:
        return _all(self._admin.delete_consumer_groups([job["group"]]))

    def _delete_records(self, job: Job) -> int:
        one = confluent.TopicPartition(job["topic"], 0, job["before"])
        (found,) = self._admin.delete_records([one]).values()
        return int(found.result(_SECONDS).low_watermark)

    def _at(self, job: Job) -> list[int]:
        """The offsets of a time, of the beginning, and of the end, of partition 0."""
        consumer = confluent.Consumer({**self._config, "group.id": "unused"})
        one = confluent.TopicPartition(job["topic"], 0, job["time"])
        (found,) = consumer.offsets_for_times([one], timeout=_SECONDS)
        low, high = consumer.get_watermark_offsets(one, timeout=_SECONDS)
        consumer.close()
        return [found.offset, low, high]


_NEEDS = {"delete_records": "delete_records"}


def _all(futures: dict[Any, Any]) -> str:
    for done in futures.values():
        done.result(_SECONDS)
    return "ok"


if __name__ == "__main__":
    driver = Driver(sys.argv[1])
    verbs = {name: getattr(driver, name) for name in ("produce", "consume", "member", "transact", "relay", "admin")}
    say("client", confluent.version() if callable(confluent.version) else confluent.__version__)
    _orders.work(verbs, (confluent.KafkaException, BufferError))
