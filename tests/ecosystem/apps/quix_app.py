"""`quix_app.py BOOTSTRAP STATE_DIR GUARANTEE REPLICAS`: counts the records of each key, until it is killed."""

import sys

from quixstreams import Application, State
from quixstreams.models.topics import TopicConfig
from quixstreams.models.topics.manager import TopicManager


def count(_: str, state: State) -> str:
    now = (state.get("count") or 0) + 1
    state.set("count", now)
    return str(now)


bootstrap, state_dir, guarantee, replicas = sys.argv[1:]
TopicManager.default_replication_factor = int(replicas)
app = Application(
    broker_address=bootstrap,
    consumer_group="quix",
    processing_guarantee=guarantee,
    auto_offset_reset="earliest",
    commit_interval=0.3,
    state_dir=state_dir,
    consumer_extra_config={"session.timeout.ms": 6000, "heartbeat.interval.ms": 1000},
    # Each start has a transactional id of its own, so nothing but the timeout ends what a killed one left open; until
    # then its offsets are pending, and Quix waits for them 30 s.
    producer_extra_config={"transaction.timeout.ms": 10000} if guarantee == "exactly-once" else {},
    use_changelog_topics=True,
    loglevel="WARNING",
)
config = TopicConfig(num_partitions=3, replication_factor=int(replicas))
lines = app.topic("lines", value_deserializer="str", key_deserializer="str", config=config)
counts = app.topic("counts", value_serializer="str", key_serializer="str", config=config)
app.dataframe(lines).apply(count, stateful=True).to_topic(counts)
app.run()
