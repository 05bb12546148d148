"""Access tokens: JSON web tokens, signed with a key of the identity provider (``BrokerJwtValidator.java``, KIP-768).

A token must be signed by an algorithm of `ALGORITHMS`, all of which have a public key: ``none`` and HMAC are not among
them. The key comes from the provider's set alone, never from the token.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from seglog.core.extras import require

if TYPE_CHECKING:
    from joserfc.jwk import Key
    from joserfc.jws import JWSRegistry

ALGORITHMS: Final[Mapping[str, tuple[str, str]]] = {
    **{f"{family}{size}": ("RSA", "") for family in ("RS", "PS") for size in (256, 384, 512)},
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "EdDSA": ("OKP", ""),
    "Ed25519": ("OKP", "Ed25519"),
}
"""The type of key of each algorithm, and its curve if there is only one."""
_MOST_KEYS: Final = 100
_MOST_TRIES: Final = 8
"""How many keys a token without ``kid`` is tried with."""
_MOST_BYTES: Final = 256 << 10
"""Of one part of a token."""
_LEAST_RSA_BITS: Final = 2048
_PARTS: Final = 3


class TokenRefusedError(ValueError):
    """Why a token is refused: for the broker's log, not for the client. ``scope`` is what it lacks."""

    def __init__(self, why: str, scope: str = "") -> None:
        super().__init__(why)
        self.scope = scope


class AccessToken(NamedTuple):
    user: str
    expires_ms: int


class TokenRules(NamedTuple):
    """``sasl.oauthbearer.*``. No ``audiences`` or ``issuer``: any."""

    audiences: frozenset[str]
    issuer: str
    subject_claim: str
    scope_claim: str
    skew_seconds: int


class KeySet:
    """The public keys of a JWK set (RFC 7517) that can verify tokens."""

    def __init__(self, keys: Sequence[tuple[Mapping[str, Any], Key]]) -> None:
        self._keys = keys

    def __len__(self) -> int:
        return len(self._keys)

    @classmethod
    def parse(cls, data: bytes) -> KeySet:
        """ValueError if it is not a set of keys. Keys of other types or uses, and weak ones, are left out."""
        told = _object(data, "the key set")
        rows = told.get("keys")
        if not isinstance(rows, list):
            raise ValueError("it is not a JWK set: it has no list of keys")
        if len(rows) > _MOST_KEYS:
            raise ValueError(f"it has {len(rows)} keys, more than {_MOST_KEYS}")
        return cls([(row, key) for row in rows if isinstance(row, dict) and (key := _public_key(row)) is not None])

    def fitting(self, header: Mapping[str, Any]) -> list[Key]:
        """The keys that may have signed a token with this header."""
        algorithm = header["alg"]
        kind, curve = ALGORITHMS[algorithm]
        kid = header.get("kid")
        return [
            key
            for row, key in self._keys
            if row["kty"] == kind
            and (not curve or row.get("crv") == curve)
            and row.get("alg", algorithm) == algorithm
            and (kid is None or row.get("kid", kid) == kid)
        ][:_MOST_TRIES]


def _public_key(row: Mapping[str, Any]) -> Key | None:
    jwk = require("joserfc.jwk", "oauth", purpose="verifying the tokens of OAUTHBEARER")
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from joserfc.errors import JoseError

    classes = {"RSA": jwk.RSAKey, "EC": jwk.ECKey, "OKP": jwk.OKPKey}
    kind, operations = row.get("kty"), row.get("key_ops")
    if (
        not isinstance(kind, str)
        or kind not in classes
        or row.get("use", "sig") != "sig"
        or not isinstance(operations, list | None)
    ):
        return None
    if operations is not None and "verify" not in operations:
        return None
    public = {name: row[name] for name in ("kty", "n", "e", "crv", "x", "y") if name in row}
    try:
        key: Key = classes[kind].import_key(public)
        raw = key.public_key
    except (JoseError, ValueError, TypeError, KeyError, AttributeError):
        return None
    is_weak = isinstance(raw, RSAPublicKey) and raw.key_size < _LEAST_RSA_BITS
    return None if is_weak else key


def token_header(token: str) -> Mapping[str, Any]:
    """The header of a token, not verified. `TokenRefusedError` if its algorithm is not allowed."""
    parts = token.split(".")
    if len(parts) != _PARTS or not all(parts):
        raise TokenRefusedError("it does not have three parts: it is not a signed JWT")
    header = _decoded(parts[0], "its header")
    algorithm = header.get("alg")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise TokenRefusedError(f"its algorithm {algorithm!r:.40} is none of {', '.join(ALGORITHMS)}")
    if not isinstance(header.get("kid"), str | None):
        raise TokenRefusedError("its kid is not a text")
    return header


def signed_claims(token: str, keys: Sequence[Key]) -> Mapping[str, Any]:
    """The claims of a token that one of the keys has signed; `TokenRefusedError` if none has."""
    from joserfc.errors import JoseError
    from joserfc.jws import deserialize_compact

    registry = _registry()
    for key in keys:
        try:
            payload = deserialize_compact(token, key, registry=registry).payload
        except (JoseError, ValueError, TypeError, KeyError):
            continue
        return _object(payload or b"", "its payload", TokenRefusedError)
    raise TokenRefusedError("its signature is not valid")


@lru_cache(1)
def _registry() -> JWSRegistry:
    from joserfc.jws import JWSRegistry

    class Registry(JWSRegistry):
        max_header_length = max_payload_length = _MOST_BYTES

        def get_alg(self, name: str) -> Any:
            """Those of `ALGORITHMS`, which were chosen before; without the warning that EdDSA has a newer name."""
            return self.algorithms[name]

    # A provider may add header parameters of its own, such as chains of certificates, which are ignored.
    return Registry(algorithms=list(ALGORITHMS), strict_check_header=False)


def unsecured_claims(token: str) -> Mapping[str, Any]:
    """Of a token without a signature (``OAuthBearerUnsecuredJws.java``)."""
    parts = token.split(".")
    if len(parts) != _PARTS or parts[2] or _decoded(parts[0], "its header").get("alg") != "none":
        raise TokenRefusedError("it is not an unsecured JWT")
    return _decoded(parts[1], "its payload")


def access_token(claims: Mapping[str, Any], rules: TokenRules, now: float) -> AccessToken:
    """`TokenRefusedError` unless the claims are as the rules want them at ``now``, in seconds."""
    expires, issued, begins = (_time(claims, name) for name in ("exp", "iat", "nbf"))
    if expires is None or issued is None:
        raise TokenRefusedError(f"it has no {'exp' if expires is None else 'iat'}")
    if now - rules.skew_seconds >= expires:
        raise TokenRefusedError("it has expired")
    if begins is not None and now + rules.skew_seconds < begins:
        raise TokenRefusedError("it is not valid yet")
    if expires < issued:
        raise TokenRefusedError("it expires before it was issued")
    if rules.audiences and not rules.audiences.intersection(_texts(claims.get("aud"))):
        raise TokenRefusedError("its aud has none of sasl.oauthbearer.expected.audience")
    if rules.issuer and claims.get("iss") != rules.issuer:
        raise TokenRefusedError("its iss is not sasl.oauthbearer.expected.issuer")
    scopes = [_text(scope, rules.scope_claim) for scope in _texts(claims.get(rules.scope_claim))]
    if len(set(scopes)) < len(scopes):
        raise TokenRefusedError(f"its {rules.scope_claim} has an element twice")
    return AccessToken(_text(claims.get(rules.subject_claim), rules.subject_claim), int(expires * 1000))


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1 << 40:
        raise TokenRefusedError(f"its {name} is not a time")
    return float(value)


def _texts(value: object) -> list[object]:
    if isinstance(value, str):
        return [value]
    return value if isinstance(value, list) else []


def _text(value: object, name: str) -> str:
    """As `ClaimValidationUtils` trims it."""
    if not isinstance(value, str) or not (text := value.strip(_BLANKS)):
        raise TokenRefusedError(f"its {name} is missing, empty or not a text")
    return text


_BLANKS: Final = "".join(map(chr, range(0x21)))


def _decoded(part: str, what: str) -> Mapping[str, Any]:
    try:
        data = urlsafe_b64decode(part + "=" * (-len(part) % 4)) if len(part) <= _MOST_BYTES else b""
    except ValueError:
        raise TokenRefusedError(f"{what} is not base64url") from None
    return _object(data, what, TokenRefusedError)


def _object(data: bytes, what: str, error: type[ValueError] = ValueError) -> Mapping[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise error(f"{what} is not a JSON object")
    return found
