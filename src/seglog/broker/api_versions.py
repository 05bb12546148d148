"""ApiVersions: what is served, from the one table of APIs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from seglog.broker.codes import Code
from seglog.broker.requests import Answer, Context, Handler
from seglog.protocol.apis import APIS, ApiKey
from seglog.protocol.messages import Message

_SOFTWARE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9\-.]*[A-Za-z0-9])?")
"""What KIP-511 allows as a client's name and version."""
_TABLE: Final = [{"api_key": api.key, "min_version": api.low, "max_version": api.high} for api in APIS.values()]


class ApiVersions:
    """Says which versions of which APIs there are. No features: no KIP-848 groups, no transactions of version 2."""

    def handlers(self) -> Mapping[int, Handler]:
        return {ApiKey.API_VERSIONS: self.api_versions}

    def api_versions(self, request: Message, context: Context) -> Answer:
        if context.version >= 3 and not (
            _SOFTWARE.fullmatch(request.client_software_name) and _SOFTWARE.fullmatch(request.client_software_version)
        ):
            return {"error_code": Code.INVALID_REQUEST}
        return {"api_keys": _TABLE}
