"""What ``--write`` allows: one record, and the offsets of a group, each with a preview of what would be done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from seglog.cli.options import OptionError
from seglog.cli.wire.clients import Cluster
from seglog.cli.wire.groups_reset import ResetOptions, commit_reset, plan_reset, reset_document
from seglog.cli.wire.input_lines import OutgoingRecord
from seglog.cli.wire.sender import Sender, producer_settings

_MODES: Final[Mapping[str, Callable[[str], ResetOptions]]] = {
    "earliest": lambda _: ResetOptions(to_earliest=True),
    "latest": lambda _: ResetOptions(to_latest=True),
    "offset": lambda value: ResetOptions(to_offset=_number(value)),
    "shift": lambda value: ResetOptions(shift_by=_number(value)),
    "time": lambda value: ResetOptions(to_datetime=value),
}


def produce(
    cluster: Cluster,
    topic: str,
    partition: int | None,
    key: str | None,
    value: str | None,
    headers: Sequence[Sequence[str]],
) -> dict[str, Any]:
    """Send one record, as `seglog produce` does; None as ``value`` is a tombstone. Says where it went."""
    if topic not in cluster.topics():
        raise OptionError(f"topic {topic} does not exist")
    settings = producer_settings("all", "none", None, None, batch_size=1_000_000, linger_ms=0)
    sender = Sender(cluster, topic, settings, "murmur2", partition, counts=True)
    pairs = [(name, text.encode()) for name, text in headers]
    sender.send(OutgoingRecord(None if key is None else key.encode(), None if value is None else value.encode(), pairs))
    sender.flush()
    return sender.document()


def reset(
    cluster: Cluster, group: str, topics: Sequence[str], mode: str, value: str, *, execute: bool
) -> dict[str, object]:
    """The new offsets, as `seglog groups reset-offsets` finds them; they are committed only with ``execute``."""
    if mode not in _MODES:
        raise OptionError(f"mode must be one of {', '.join(_MODES)}, not {mode}")
    plan = plan_reset(cluster, group, _MODES[mode](value).mode(), topics, several=False)
    if execute:
        commit_reset(cluster, plan)
    return reset_document(plan, done=execute)


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise OptionError(f"{text!r} is not a number") from None
