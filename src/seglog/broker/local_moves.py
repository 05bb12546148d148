"""Elections and reassignments as a node that is alone answers them."""

from __future__ import annotations

from collections.abc import Mapping

from seglog.broker.elections import Elections
from seglog.broker.identity import Identity
from seglog.broker.partition_states import LocalStates
from seglog.broker.reassignments import Reassignments
from seglog.broker.requests import Handler
from seglog.broker.topics import LocalTopics


def handlers(topics: LocalTopics, identity: Identity) -> Mapping[int, Handler]:
    states = LocalStates(topics, identity.node_id)
    apis = (Elections(states, topics), Reassignments(states, topics, identity))
    return {key: handler for api in apis for key, handler in api.handlers().items()}
