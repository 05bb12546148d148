"""`aiokafka_app.py BOOTSTRAP`: copies "lines" to "copies" in transactions, until it is killed."""

import asyncio
import sys

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer


async def copy(bootstrap: str) -> None:
    consumer = AIOKafkaConsumer(
        "lines",
        bootstrap_servers=bootstrap,
        group_id="copiers",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
        session_timeout_ms=6000,
        heartbeat_interval_ms=1000,
    )
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id="copier")
    async with consumer, producer:
        while True:
            batches = await consumer.getmany(timeout_ms=200, max_records=500)
            if not batches:
                continue
            async with producer.transaction():
                for partition, messages in batches.items():
                    for message in messages:
                        await producer.send("copies", message.value, key=message.key, partition=partition.partition)
                offsets = {partition: messages[-1].offset + 1 for partition, messages in batches.items()}
                await producer.send_offsets_to_transaction(offsets, "copiers")


asyncio.run(copy(sys.argv[1]))
