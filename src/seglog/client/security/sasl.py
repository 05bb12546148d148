"""SASL with a broker (KIP-43, KIP-152): SaslHandshake names the mechanism, SaslAuthenticate carries its messages.

A mechanism is a generator: it yields the client's messages, takes the broker's, and ends when it is satisfied.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping
from typing import Any, Final

from seglog.client.security.oauth_token import TOKENS, TokenCache
from seglog.client.security.references import Secrets, is_reference
from seglog.client.security.scram import new_nonce, scram
from seglog.client.security.security_config import EXTENSION, OAUTHBEARER, PLAIN, SCRAM_SHA_512, SecurityConfig
from seglog.core.error_codes import ErrorCode, error_name
from seglog.core.errors import AuthenticationFailedError, InvalidConfigError
from seglog.protocol.apis import ApiKey
from seglog.protocol.message_reader import Message

Mechanism = Generator[bytes, bytes, None]
Ask = Callable[[ApiKey, Mapping[str, Any]], Message]
_JAAS: Final = "sasl.jaas.config"
_EXTENSION_NAME: Final = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE: Final = re.compile(r"[\x21-\x7e \t\r\n]+")
"""``OAuthBearerClientInitialResponse.java``."""


def authenticate(
    ask: Ask, broker: str, config: SecurityConfig, secrets: Secrets, tokens: TokenCache = TOKENS
) -> float | None:
    """Authenticate a connection, or again. The lifetime of the session in seconds (KIP-368), None without an end.

    `AuthenticationFailedError` names broker, mechanism and reason.
    """
    name = config.sasl_mechanism
    assert name is not None
    steps = authentication(broker, name, lambda: _mechanism(config, secrets, tokens))
    request = next(steps)
    while True:
        try:
            request = steps.send(ask(*request))
        except StopIteration as end:
            lifetime: float | None = end.value
            return lifetime


def authentication(
    broker: str, name: str, make: Callable[[], Mechanism]
) -> Generator[tuple[ApiKey, Mapping[str, Any]], Message, float | None]:
    """The requests of `authenticate`; takes their answers. ``make`` is called when the broker has the mechanism."""
    what = f"{broker}: SASL {name}"
    answer = yield ApiKey.SASL_HANDSHAKE, {"mechanism": name}
    if answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        raise AuthenticationFailedError(
            f"{what}: the broker does not have this mechanism; set sasl.mechanism to one that it has: "
            f"{', '.join(sorted(answer.mechanisms))}"
        )
    if answer.error_code == ErrorCode.ILLEGAL_SASL_STATE:
        raise AuthenticationFailedError(f"{what}: the listener does not use SASL: check security.protocol")
    _check(answer, what)
    mechanism = make()
    message = next(mechanism)
    while True:
        answer = yield ApiKey.SASL_AUTHENTICATE, {"auth_bytes": message}
        _check(answer, what)
        try:
            message = mechanism.send(answer.auth_bytes)
        except StopIteration:
            break
        except ValueError as error:
            raise AuthenticationFailedError(f"{what}: {error}") from None
    return answer.session_lifetime / 1000 if answer.session_lifetime > 0 else None


def _check(answer: Message, what: str) -> None:
    if answer.error_code:
        reason = getattr(answer, "error_message", None)
        name = error_name(answer.error_code)
        raise AuthenticationFailedError(f"{what}: {f'{name}: {reason}' if reason else name}")


def _mechanism(config: SecurityConfig, secrets: Secrets, tokens: TokenCache) -> Mechanism:
    """References are resolved here, for this connection."""
    options = jaas_options(config, secrets)
    if config.sasl_mechanism == OAUTHBEARER:
        return oauth_bearer(tokens.token(options, config, secrets), extensions_of(options))
    user, password = options["username"], options["password"]
    if not user or not password:
        raise InvalidConfigError(f"{_JAAS}: the name or the password is empty once its references are resolved")
    if config.sasl_mechanism == PLAIN:
        return plain(user, password)
    digest = "sha512" if config.sasl_mechanism == SCRAM_SHA_512 else "sha256"
    is_token = options.get("tokenauth", "").lower() == "true"
    return scram(digest, user, password, new_nonce(), is_token=is_token)


def jaas_options(config: SecurityConfig, secrets: Secrets) -> Mapping[str, str]:
    """The options of the login module, with all references resolved."""
    text = config.sasl_jaas_config
    if text is None:
        return {}
    if is_reference(text):
        return config.jaas(secrets.resolve(_JAAS, text)).options
    return {name: secrets.resolve(_JAAS, value) for name, value in config.jaas(text).options.items()}


def plain(user: str, password: str) -> Mechanism:
    """RFC 4616."""
    if "\0" in user + password:
        raise InvalidConfigError(f"{_JAAS}: the name or the password has a NUL character")
    yield f"\0{user}\0{password}".encode()


def oauth_bearer(token: str, extensions: Mapping[str, str]) -> Mechanism:
    """RFC 7628, with Kafka's extensions (KIP-342). A broker that refuses the token says why, and wants a last word."""
    pairs = "".join(f"{name}={value}\x01" for name, value in extensions.items())
    answer = yield f"n,,\x01auth=Bearer {token}\x01{pairs}\x01".encode()
    if answer:
        yield b"\x01"
        raise ValueError(f"the token is refused: {answer[:1000].decode(errors='replace')}")


def extensions_of(options: Mapping[str, str]) -> dict[str, str]:
    """Those of SASL among the options of a login module. `InvalidConfigError`."""
    found = {name.removeprefix(EXTENSION): value for name, value in options.items() if name.startswith(EXTENSION)}
    for name, value in found.items():
        if not _EXTENSION_NAME.fullmatch(name) or name == "auth" or not _EXTENSION_VALUE.fullmatch(value):
            raise InvalidConfigError(f"{_JAAS}: the extension {name!r} is not valid: letters, then printable text")
    return found
