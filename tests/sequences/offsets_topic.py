"""The records that groups left in ``__consumer_offsets`` on both brokers, as Kafka's own decoder prints them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from tests.kafka import CURRENT
from tests.kafka.tools import dump_log_segments
from tests.sequences.both import Side, in_order

_RECORD: Final = re.compile(r" key: (\{.*\}) payload: (.*)$", re.MULTILINE)
_OWN: Final = frozenset({"commitTimestamp", "expireTimestamp", "currentStateTimestamp", "topicId"})
"""Times, and ids that each broker makes up."""


def records(side: Side, log_dir: Path, groups: Iterable[str]) -> dict[str, list[Any]]:
    """The records of each of the groups, in order: key and value."""
    segments = sorted((log_dir / "__consumer_offsets-0").glob("*.log"))
    text = dump_log_segments(CURRENT, segments, "--offsets-decoder")
    found: dict[str, list[Any]] = {group: [] for group in groups}
    for key_text, value_text in _RECORD.findall(text):
        key = json.loads(key_text)
        value = json.loads(value_text) if value_text.startswith("{") else value_text
        group = key["data"].get("group")  # records of consumer groups name theirs otherwise
        if group in found:
            found[group].append(_plain(side, [key, value]))
    return found


def _plain(side: Side, value: Any) -> Any:
    if isinstance(value, dict):
        return {name: bool(one) if name in _OWN else _plain(side, one) for name, one in sorted(value.items())}
    if isinstance(value, list):
        return in_order([_plain(side, one) for one in value])
    return side.plain(value)
