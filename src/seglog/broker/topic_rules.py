"""What configurations say of a topic's leaders."""

from __future__ import annotations

import logging
from typing import Final

from seglog.broker.groups import group_settings
from seglog.cluster.model import TopicRules, TopicState
from seglog.coordinators.settings import OFFSETS_TOPIC
from seglog.core.broker_config import BrokerConfig
from seglog.core.config import TOPIC_KEYS
from seglog.core.errors import InvalidConfigError

_log: Final = logging.getLogger("seglog.broker")
_MIN_INSYNC: Final = TOPIC_KEYS["min.insync.replicas"]
_UNCLEAN: Final = TOPIC_KEYS["unclean.leader.election.enable"]


def topic_rules(topic: TopicState, config: BrokerConfig) -> TopicRules:
    """What a topic's own configuration, and a broker's where it has none, says of its leaders."""
    defaults, overrides = config.directory.topics, topic.config
    min_insync, unclean = defaults.min_insync_replicas, defaults.unclean_leader_election_enable
    try:
        if _MIN_INSYNC.name in overrides:
            min_insync = _MIN_INSYNC.parse(overrides[_MIN_INSYNC.name])
        if _UNCLEAN.name in overrides:
            unclean = _UNCLEAN.parse(overrides[_UNCLEAN.name])
    except InvalidConfigError as error:  # a later seglog may know more values
        _log.error("topic %s: %s", topic.name, error)
    replicas = 0
    if topic.name == OFFSETS_TOPIC:
        replicas = group_settings(config, is_alone=False).offsets_topic_replication_factor
    return TopicRules(min_insync, unclean, replicas)
