"""ApiVersions: what is served, from the one table of APIs. No features: no KIP-848 groups, no transactions of
version 2."""

from __future__ import annotations

import re
from typing import Final

from seglog.core.error_codes import ErrorCode
from seglog.protocol.api_versions import read_api_versions, write_api_versions

_SOFTWARE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9\-.]*[A-Za-z0-9])?")
"""What KIP-511 allows as a client's name and version."""


def api_versions(version: int, frame: memoryview, body: int) -> bytes:
    """The response's body."""
    software = read_api_versions(version, frame, body)
    if software is not None and not all(_SOFTWARE.fullmatch(text) for text in software):
        return write_api_versions(version, ErrorCode.INVALID_REQUEST, with_apis=False)
    return write_api_versions(version)


def unknown_version() -> bytes:
    """The body, of version 0, for who asks in a version that is not known (KIP-511)."""
    return write_api_versions(0, ErrorCode.UNSUPPORTED_VERSION)
