"""A client's settings of ``--command-config`` and ``-X``, in the spelling of librdkafka or of Kafka's Java clients.

Commands use two clients: confluent-kafka, which is librdkafka, and seglog's own for what that lacks. Both get the
settings about security in their own spelling, so one file serves all commands, and Kafka's tools too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from seglog.cli.options import OptionError
from seglog.client.security import pem
from seglog.client.security.references import Secrets
from seglog.client.security.sasl import jaas_options
from seglog.client.security.security_config import (
    EXTENSION,
    MODULES,
    OAUTHBEARER,
    SECURITY_SETTINGS,
    SecurityConfig,
)
from seglog.core.clock import SystemClock

_JAAS: Final = "sasl.jaas.config"
_JAVA: Final[Mapping[str, str]] = {
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.key.pem": "ssl.keystore.key",
    "sasl.mechanisms": "sasl.mechanism",
    "sasl.oauthbearer.client.id": "sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.secret": "sasl.oauthbearer.client.credentials.client.secret",
}
"""Names of librdkafka whose values mean the same under a name of Java."""
_FILES: Final[Mapping[str, str]] = {
    "ssl.certificate.location": "ssl.keystore.certificate.chain",
    "ssl.key.location": "ssl.keystore.key",
}
"""Names of librdkafka for files whose content is a value of Java's."""
_ONLY_JAVA: Final = frozenset(
    {
        _JAAS,
        "sasl.login.callback.handler.class",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.type",
        "ssl.truststore.certificates",
        "ssl.truststore.location",
        "ssl.truststore.type",
    }
)
_IDENTIFICATION: Final = "ssl.endpoint.identification.algorithm"
_TOKEN_SECONDS: Final = 60.0
"""After which librdkafka asks for a token again, which is kept until it is old."""


def security_of(settings: Mapping[str, str]) -> SecurityConfig:
    """For our own client. `InvalidConfigError` if the settings do not fit each other."""
    found: dict[str, str] = {}
    for name, text in settings.items():
        if name in _FILES:
            folder, file = os.path.split(os.path.abspath(text))
            found[_FILES[name]] = f"${{directory:{folder}:{file}}}"
        elif name == _IDENTIFICATION:
            found[name] = "" if text == "none" else text
        elif name == "enable.ssl.certificate.verification" and text.lower() == "false":
            raise OptionError(f"{name}=false is not allowed: this command verifies certificates; trust its CA instead")
        elif _JAVA.get(name, name) in SECURITY_SETTINGS:
            found[_JAVA.get(name, name)] = text
    user, password = settings.get("sasl.username"), settings.get("sasl.password")
    if _JAAS not in found and user is not None and password is not None:
        module = MODULES.get(found.get("sasl.mechanism", ""), "")
        found[_JAAS] = f"{module or 'x.None'} required username={_quoted(user)} password={_quoted(password)};"
    values: dict[str, Any] = {SECURITY_SETTINGS[name].attribute: text for name, text in found.items()}
    return SecurityConfig(**values)


def librdkafka_settings(settings: Mapping[str, str]) -> dict[str, Any]:
    """For confluent-kafka. `InvalidConfigError`, `OptionError` for what it cannot do."""
    if _ONLY_JAVA.isdisjoint(settings):
        return dict(settings)
    config, secrets = security_of(settings), Secrets()
    found: dict[str, Any] = {name: text for name, text in settings.items() if name not in _ONLY_JAVA}
    if found.get(_IDENTIFICATION) == "":
        found[_IDENTIFICATION] = "none"
    for name, given in (
        ("ssl.ca.location", "ssl.truststore.location"),
        ("ssl.ca.pem", "ssl.truststore.certificates"),
        ("ssl.certificate.pem", "ssl.keystore.certificate.chain"),
        ("ssl.key.pem", "ssl.keystore.key"),
    ):
        if given in settings:
            found[name] = secrets.resolve(given, settings[given])
    store = found.get("ssl.keystore.location")
    if store is not None and pem.store_type(secrets.read("ssl.keystore.location", store)) is None:
        found["ssl.certificate.location"] = found["ssl.key.location"] = found.pop("ssl.keystore.location")
    if _JAAS in settings and config.uses_sasl:
        found.update(_login(config, secrets))
    return found


def _login(config: SecurityConfig, secrets: Secrets) -> dict[str, Any]:
    options = jaas_options(config, secrets)
    if config.sasl_mechanism == OAUTHBEARER:
        return {"oauth_cb": _token_of(config, options, secrets)}
    if options.get("tokenauth", "").lower() == "true":
        raise OptionError(
            "sasl.jaas.config: tokenauth is not supported: librdkafka does not log in by delegation tokens"
        )
    return {"sasl.username": options["username"], "sasl.password": options["password"]}


def _token_of(
    config: SecurityConfig, options: Mapping[str, str], secrets: Secrets
) -> Callable[[str], tuple[str, float, str, dict[str, str]]]:
    from seglog.client.security.oauth_token import TOKENS

    extensions = {name.removeprefix(EXTENSION): text for name, text in options.items() if name.startswith(EXTENSION)}

    def token(_: str) -> tuple[str, float, str, dict[str, str]]:
        found = TOKENS.token(options, config, secrets)
        return found, SystemClock().now_ms() / 1000 + _TOKEN_SECONDS, "", extensions

    return token


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
