"""`faust_app.py BOOTSTRAP DATA_DIR GUARANTEE REPLICAS`: counts the records of each key, until it is killed."""

import sys

import faust

bootstrap, data_dir, guarantee, replicas = sys.argv[1:]
app = faust.App(
    "faust",
    broker=";".join(f"kafka://{broker}" for broker in bootstrap.split(",")),
    store="memory://",
    datadir=data_dir,
    processing_guarantee=guarantee,
    topic_replication_factor=int(replicas),
    topic_partitions=3,
    broker_commit_interval=0.3,
    broker_session_timeout=6.0,
    broker_heartbeat_interval=1.0,
    consumer_auto_offset_reset="earliest",
    web_enabled=False,
    value_serializer="raw",
    key_serializer="raw",
)
lines = app.topic("lines", key_type=bytes, value_type=bytes)
counts = app.topic("counts", key_type=bytes, value_type=bytes)
table = app.Table("numbers", default=int, key_type=bytes, value_type=int, partitions=3)


@app.agent(lines)
async def count(stream: faust.Stream) -> None:
    async for key, _ in stream.items():  # noqa: PERF102 - a stream, which has no keys()
        table[key] += 1
        await counts.send(key=key, value=str(table[key]).encode())


app.Worker(loglevel="WARNING").execute_from_commandline()
