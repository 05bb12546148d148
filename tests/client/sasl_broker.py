"""A broker with SASL PLAIN, and TLS if it is given a context, in a thread: seglog's own has neither.

It answers ApiVersions, SASL, and Metadata with its name as cluster id. ``requests`` are the keys of all requests.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, Final

from seglog.core.error_codes import ErrorCode
from seglog.protocol.apis import ApiKey
from tests.kit.protocol_server import ProtocolServer

_VERSIONS: Final = {ApiKey.SASL_HANDSHAKE: 1, ApiKey.SASL_AUTHENTICATE: 1, ApiKey.METADATA: 5}
"""All of them are without tagged fields."""


class SaslBroker(ProtocolServer):
    """``passwords`` may change while it runs. ``session_ms`` is the lifetime of sessions, which it does not end."""

    def __init__(
        self, passwords: dict[str, str] | None = None, *, session_ms: int = 0, tls: ssl.SSLContext | None = None
    ) -> None:
        super().__init__(_VERSIONS, tls)
        self.passwords = passwords or {}
        self._session_ms = session_ms

    def contents(self, key: ApiKey, request: Any) -> Mapping[str, Any]:
        if key == ApiKey.SASL_HANDSHAKE:
            is_known = request.mechanism == "PLAIN"
            code = ErrorCode.NONE if is_known else ErrorCode.UNSUPPORTED_SASL_MECHANISM
            return {"error_code": code, "mechanisms": ["PLAIN"]}
        if key == ApiKey.SASL_AUTHENTICATE:
            _, user, password = bytes(request.auth_bytes).decode().split("\0")
            if self.passwords.get(user) == password:
                return {"session_lifetime": self._session_ms}
            return {"error_code": ErrorCode.SASL_AUTHENTICATION_FAILED, "error_message": "wrong user or password"}
        return {"cluster_id": "made"}
