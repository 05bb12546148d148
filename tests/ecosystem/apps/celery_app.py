"""`celery_app.py BOOTSTRAP REPLICAS worker|send FIRST LAST`: a task for each number; a task writes it to "copies"."""

import sys

from celery import Celery
from confluent_kafka import Producer

bootstrap, replicas, role, *numbers = sys.argv[1:]
app = Celery("copier", broker=f"confluentkafka://{bootstrap.partition(',')[0]}")
app.conf.update(
    task_acks_late=True,
    task_default_queue="tasks",
    worker_prefetch_multiplier=1,
    broker_transport_options={
        "num_partitions": 1,
        "replication_factor": int(replicas),
        "wait_time_seconds": 1,
        "kafka_common_config": {"bootstrap.servers": bootstrap},
        "kafka_consumer_config": {"session.timeout.ms": 6000, "heartbeat.interval.ms": 1000},
    },
)


@app.task(name="copy")
def copy(number: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    producer.produce("copies", f"line {number}", f"k{number % 40}")
    assert producer.flush(60) == 0


if role == "send":
    for number in range(int(numbers[0]), int(numbers[1])):
        copy.delay(number)
else:
    arguments = ["worker", "--pool=solo", "--loglevel=WARNING", "--without-gossip", "--without-mingle"]
    app.worker_main([*arguments, "--without-heartbeat"])
