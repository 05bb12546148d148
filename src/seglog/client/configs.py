"""What a broker says of a configuration."""

from __future__ import annotations

from typing import NamedTuple


class ConfigValue(NamedTuple):
    """A key of a broker's or topic's configuration; ``value`` is None where it is a secret."""

    name: str
    value: str | None
    source: int
    is_read_only: bool
    is_sensitive: bool
