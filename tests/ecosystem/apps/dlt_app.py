"""`dlt_app.py BOOTSTRAP`: loads the new records of the topic "lines" into "copies", run after run."""

import sys
from collections.abc import Iterator

import dlt
from confluent_kafka import Consumer, Producer, TopicPartition
from dlt.pipeline.exceptions import PipelineStepFailed

dlt.config["runtime.dlthub_telemetry"] = False
bootstrap = sys.argv[1]
consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "copiers", "enable.auto.commit": False})
producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})


@dlt.resource(name="lines")
def new_lines() -> Iterator[list[dict[str, str]]]:
    """As dlt's own Kafka source: from the offsets in the pipeline's state to the ends of the partitions."""
    state = dlt.current.resource_state()
    starts = [
        TopicPartition("lines", number, state.get(str(number), 0))
        for number in consumer.list_topics("lines", 60).topics["lines"].partitions
    ]
    ends = {one.partition: consumer.get_watermark_offsets(one, 60)[1] for one in starts}
    consumer.assign(starts)
    while any(state.get(str(partition), 0) < end for partition, end in ends.items()):
        messages = [message for message in consumer.consume(500, 1) if message.error() is None]
        for message in messages:
            state[str(message.partition())] = message.offset() + 1
        yield [{"key": message.key().decode(), "line": message.value().decode()} for message in messages]


@dlt.destination(batch_size=200, skip_dlt_columns_and_tables=True)
def copies(items: list[dict[str, str]], _: object) -> None:
    for item in items:
        producer.produce("copies", item["line"], item["key"])
    assert producer.flush(60) == 0


pipeline = dlt.pipeline("copier", pipelines_dir="pipelines", destination=copies)
while True:
    try:
        pipeline.run(new_lines())
    except PipelineStepFailed as failed:
        print(failed, file=sys.stderr)  # the next run continues, as a scheduler's would
