"""An identity provider that signs access tokens, without its endpoints."""

from __future__ import annotations

import json
import time
import warnings
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from typing import Any, Final

from joserfc.jwk import ECKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry, serialize_compact

AUDIENCE: Final = "kafka"
ISSUER: Final = "https://issuer.example"
_Key = RSAKey | ECKey | OKPKey
_CURVES: Final = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}


def new_key(algorithm: str = "ES256", *, bits: int = 2048) -> _Key:
    if algorithm[:2] in ("RS", "PS"):
        return RSAKey.generate_key(bits)
    return ECKey.generate_key(_CURVES[algorithm]) if algorithm in _CURVES else OKPKey.generate_key("Ed25519")


class _AnyHeader(JWSRegistry):
    """Signs what no provider would sign."""

    def check_header(self, header: Any) -> None:
        del header


class TokenIssuer:
    """``keys`` are private ones by kid."""

    def __init__(self, **keys: _Key) -> None:
        self.keys: dict[str, _Key] = keys or {"one": new_key()}

    def jwks(self, kids: Sequence[str] | None = None) -> dict[str, Any]:
        found = self.keys if kids is None else {kid: self.keys[kid] for kid in kids}
        return {"keys": [{**key.as_dict(private=False), "kid": kid, "use": "sig"} for kid, key in found.items()]}

    def token(
        self,
        user: str = "alice",
        *,
        kid: str = "one",
        algorithm: str = "ES256",
        lifetime: float = 3600,
        header: dict[str, Any] | None = None,
        **claims: Any,
    ) -> str:
        """A claim of None is left out."""
        now = int(time.time())
        found = {"sub": user, "iat": now, "exp": now + lifetime, "aud": AUDIENCE, "iss": ISSUER, **claims}
        payload = json.dumps({name: value for name, value in found.items() if value is not None})
        protected = {"alg": algorithm, "kid": kid, **(header or {})}
        registry = _AnyHeader(algorithms=[algorithm])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # EdDSA has a newer name
            return serialize_compact(
                {name: value for name, value in protected.items() if value is not None},
                payload,
                self.keys[kid],
                registry=registry,
            )


def unsecured_token(user: str = "alice", **claims: Any) -> str:
    """Without a signature."""
    now = int(time.time())
    payload = {"sub": user, "iat": now, "exp": now + 3600, **claims}
    return f"{part({'alg': 'none'})}.{part(payload)}."


def part(value: object) -> str:
    return urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")
