"""The error of a broker for tests."""

from __future__ import annotations

from seglog.core.errors import SeglogError


class BrokerError(SeglogError):
    """The broker is not in a state in which this can be done, or it has ended by itself."""
