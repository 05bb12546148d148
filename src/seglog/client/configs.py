"""A value of a configuration, as a broker describes it."""

from __future__ import annotations

from typing import NamedTuple


class ConfigValue(NamedTuple):
    """A key of a broker's or topic's configuration; ``value`` is None if it is sensitive."""

    name: str
    value: str | None
    source: int
    is_read_only: bool
    is_sensitive: bool
