"""`faststream_app.py BOOTSTRAP`: copies the topic "lines" to "copies" until it is killed."""

import asyncio
import sys

from faststream import AckPolicy, FastStream
from faststream.confluent import KafkaBroker, KafkaMessage

broker = KafkaBroker(sys.argv[1], logger=None)


@broker.subscriber(
    "lines",
    group_id="copiers",
    auto_offset_reset="earliest",
    session_timeout_ms=6000,
    heartbeat_interval_ms=1000,
    ack_policy=AckPolicy.NACK_ON_ERROR,
)
async def copy(line: str, message: KafkaMessage) -> None:
    await broker.publish(line, "copies", key=message.raw_message.key())


asyncio.run(FastStream(broker).run())
