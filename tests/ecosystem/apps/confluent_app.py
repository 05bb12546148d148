"""`confluent_app.py BOOTSTRAP PROTOCOL`: copies "lines" to "copies" in transactions, until it is killed."""

import sys

from confluent_kafka import Consumer, KafkaException, Producer

bootstrap, protocol = sys.argv[1:]
timing = {} if protocol == "consumer" else {"session.timeout.ms": 6000, "heartbeat.interval.ms": 1000}
consumer = Consumer(
    {
        "bootstrap.servers": bootstrap,
        "group.id": "copiers",
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "log_level": 3,
        **timing,
    }
)
producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "copier", "log_level": 3})
producer.init_transactions(60)
consumer.subscribe(["lines"])
while True:
    messages = [message for message in consumer.consume(500, 0.2) if message.error() is None]
    if not messages:
        continue
    producer.begin_transaction()
    try:
        for message in messages:
            producer.produce("copies", message.value(), message.key(), partition=message.partition())
        positions = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), 60)
        producer.commit_transaction(60)
    except KafkaException as failed:
        if not failed.args[0].txn_requires_abort():
            raise
        producer.abort_transaction(60)
        for position in consumer.committed(consumer.assignment(), 60):
            consumer.seek(position)
