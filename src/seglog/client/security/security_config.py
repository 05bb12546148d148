"""The ``security.protocol``, ``ssl.*`` and ``sasl.*`` options of a client, as a user gave them.

Texts may have references to secrets (`references`); they are stored and pickled as they are, and resolved for each
connection. Names, defaults and rules are Kafka's (``SslConfigs.java``, ``SaslConfigs.java``,
``DefaultSslEngineFactory.java``), except that the only type of key and trust stores is PEM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final
from urllib.parse import urlsplit

from seglog.client.security.jaas import Jaas, parse_jaas
from seglog.client.security.references import FORMS, check_references, has_reference, is_reference
from seglog.core.errors import InvalidConfigError
from seglog.core.settings import HIDDEN, Boolean, Enumeration, Names, Setting, check, int32, setting, settings_of

_EXCHANGES: Final = ("ECDHE_ECDSA", "ECDHE_RSA", "DHE_RSA")
_CIPHERS: Final = {
    "AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    "AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "CHACHA20_POLY1305_SHA256": "CHACHA20-POLY1305",
}
TLS_1_3_SUITES: Final = tuple(f"TLS_{cipher}" for cipher in _CIPHERS)
TLS_1_2_SUITES: Final[Mapping[str, str]] = {
    f"TLS_{exchange}_WITH_{cipher}": f"{exchange.replace('_', '-')}-{name}"
    for exchange in _EXCHANGES
    for cipher, name in _CIPHERS.items()
} | {
    f"TLS_ECDHE_{key}_WITH_AES_{bits}_CBC_SHA{digest}": f"ECDHE-{key}-AES{bits}-SHA{digest}"
    for key in ("ECDSA", "RSA")
    for bits, digest in (("256", "384"), ("128", "256"), ("256", ""), ("128", ""))
}
"""The suites with forward secrecy, with their names in OpenSSL."""
SUITES: Final = (*TLS_1_3_SUITES, *TLS_1_2_SUITES)


PLAIN: Final = "PLAIN"
SCRAM_SHA_256: Final = "SCRAM-SHA-256"
SCRAM_SHA_512: Final = "SCRAM-SHA-512"
OAUTHBEARER: Final = "OAUTHBEARER"
TLS_1_2: Final = "TLSv1.2"
TLS_1_3: Final = "TLSv1.3"

_PROTOCOLS: Final = {name: name for name in ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")}
MODULES: Final[Mapping[str, str]] = {
    PLAIN: "org.apache.kafka.common.security.plain.PlainLoginModule",
    SCRAM_SHA_256: "org.apache.kafka.common.security.scram.ScramLoginModule",
    SCRAM_SHA_512: "org.apache.kafka.common.security.scram.ScramLoginModule",
    OAUTHBEARER: "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
}
"""The login module of each mechanism in ``sasl.jaas.config``."""


@dataclass(frozen=True, slots=True)
class _Mechanism(Enumeration):
    """Kafka's default is named in the error, so that it is known to be missing."""

    @property
    def allowed(self) -> str:
        return f"{', '.join(self.choices)} (GSSAPI, which is Kerberos, is not supported)"


_MECHANISM: Final = _Mechanism({name: name for name in MODULES})
_STORE_TYPE: Final = Enumeration({name: name for name in ("PEM", "JKS", "PKCS12")}, ignores_case=True)
_TLS_VERSIONS: Final = {name: name for name in ("TLS", TLS_1_2, TLS_1_3)}
_JAAS_OPTIONS: Final[Mapping[str, frozenset[str]]] = {
    PLAIN: frozenset({"username", "password"}),
    SCRAM_SHA_256: frozenset({"username", "password", "tokenauth"}),
    SCRAM_SHA_512: frozenset({"username", "password", "tokenauth"}),
    OAUTHBEARER: frozenset({"clientId", "clientSecret", "scope", "token"}),
}
_CREDENTIALS: Final = ("username", "password")
EXTENSION: Final = "extension_"
"""Begins the names of SASL extensions in ``sasl.jaas.config`` (KIP-342)."""


@dataclass(frozen=True, slots=True)
class _Referring:
    """A text that may have references to secrets."""

    type: ClassVar[str] = "string"
    allowed: ClassVar[str] = f"a text; references are {', '.join(f'`{form}`' for form in FORMS)}"

    def parse(self, value: object) -> str:
        if not isinstance(value, str):
            raise TypeError("not a text")
        check_references(value)
        return value.strip()

    def format(self, value: object) -> str:
        return "" if value is None else str(value)


_TEXT: Final = _Referring()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SecurityConfig:
    """How connections are secured. Attributes are Kafka's names with underscores for dots; None is not given.

    Values of secrets are in no `repr` and in no error. Invariant: the options fit each other, and references are
    well-formed.
    """

    security_protocol: str = setting(
        Enumeration(_PROTOCOLS, ignores_case=True), "How the brokers' listener is secured.", default="PLAINTEXT"
    )
    ssl_truststore_type: str | None = setting(
        _STORE_TYPE, "Must be PEM. Without it, seglog checks whether the file is PEM.", default=None
    )
    ssl_truststore_location: str | None = setting(
        _TEXT,
        "A file with the certificates of the CAs that sign brokers' certificates. Without it and "
        "`ssl.truststore.certificates`, the machine's CAs are trusted.",
        default=None,
    )
    ssl_truststore_certificates: str | None = setting(
        _TEXT, "The certificates themselves, as PEM.", default=None, is_secret=True
    )
    ssl_truststore_password: str | None = setting(
        _TEXT, "Refused: a PEM file has no password.", default=None, is_secret=True
    )
    ssl_keystore_type: str | None = setting(
        _STORE_TYPE, "Must be PEM. Without it, seglog checks whether the file is PEM.", default=None
    )
    ssl_keystore_location: str | None = setting(
        _TEXT,
        "A file with the private key and the certificate chain of the client, for brokers that ask for it.",
        default=None,
    )
    ssl_keystore_certificate_chain: str | None = setting(
        _TEXT, "The certificate chain itself, as PEM. Needs `ssl.keystore.key`.", default=None, is_secret=True
    )
    ssl_keystore_key: str | None = setting(
        _TEXT,
        "The private key itself, as PEM. Needs `ssl.keystore.certificate.chain`.",
        default=None,
        is_secret=True,
    )
    ssl_keystore_password: str | None = setting(
        _TEXT,
        "Refused: a PEM file has no password. For an encrypted key use `ssl.key.password`.",
        default=None,
        is_secret=True,
    )
    ssl_key_password: str | None = setting(_TEXT, "The password of the private key.", default=None, is_secret=True)
    ssl_endpoint_identification_algorithm: str = setting(
        Enumeration({"https": "https", "": ""}, ignores_case=True),
        "`https`: the broker's certificate must be for its host name. Empty: any host name.",
        default="https",
    )
    ssl_enabled_protocols: frozenset[str] = setting(
        Names((TLS_1_2, TLS_1_3)), "The versions of TLS to offer.", default=frozenset({TLS_1_2, TLS_1_3})
    )
    ssl_protocol: str = setting(Enumeration(_TLS_VERSIONS), "`TLSv1.2` excludes TLS 1.3, as in Kafka.", default=TLS_1_3)
    ssl_cipher_suites: frozenset[str] = setting(
        Names(SUITES), "The cipher suites to offer. None: OpenSSL's defaults.", default=frozenset()
    )
    sasl_mechanism: str | None = setting(_MECHANISM, "How the client authenticates. Required with SASL.", default=None)
    sasl_jaas_config: str | None = setting(
        _TEXT, "The login module of the mechanism, with its options.", default=None, is_secret=True
    )
    sasl_oauthbearer_token_endpoint_url: str | None = setting(
        _TEXT,
        "Where OAUTHBEARER gets a token: `https://…` with the client's credentials, or `file:///…`.",
        default=None,
    )
    sasl_oauthbearer_client_credentials_client_id: str | None = setting(
        _TEXT, "The client's id at the endpoint (KIP-1139), or `clientId` in `sasl.jaas.config`.", default=None
    )
    sasl_oauthbearer_client_credentials_client_secret: str | None = setting(
        _TEXT, "Its secret, or `clientSecret` in `sasl.jaas.config`.", default=None, is_secret=True
    )
    sasl_oauthbearer_scope: str | None = setting(
        _TEXT, "The scope of the token, or `scope` in `sasl.jaas.config`.", default=None
    )
    sasl_oauthbearer_header_urlencode: bool = setting(
        Boolean(), "Whether id and secret are URL-encoded in the endpoint's header (KIP-1025).", default=False
    )
    sasl_login_connect_timeout_ms: int = setting(
        int32(0), "How long (ms) connecting to the endpoint may take.", default=10_000
    )
    sasl_login_read_timeout_ms: int = setting(int32(0), "How long (ms) the endpoint may stay silent.", default=10_000)

    def __post_init__(self) -> None:
        given = [row for row in SECURITY_SETTINGS.values() if getattr(self, row.attribute) is not None]
        check(self, given)
        if self.uses_tls:
            self._check_stores()
        if self.uses_sasl:
            self._check_sasl()

    def __repr__(self) -> str:
        shown = [
            f"{row.attribute}={HIDDEN if row.is_secret else repr(value)}"
            for row in SECURITY_SETTINGS.values()
            if (value := getattr(self, row.attribute)) != row.default
        ]
        return f"SecurityConfig({', '.join(shown)})"

    @property
    def uses_tls(self) -> bool:
        return self.security_protocol.endswith("SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.security_protocol.startswith("SASL")

    def _check_stores(self) -> None:
        for kind, inline in (
            ("truststore", ("certificates",)),
            ("keystore", ("certificate.chain", "key")),
        ):
            prefix = f"ssl.{kind}"
            location = self._given(f"{prefix}.location")
            found = self._given(f"{prefix}.type")
            if found not in (None, "PEM"):
                raise not_pem(kind, str(found), location or f"<{kind}>")
            if self._given(f"{prefix}.password") is not None:
                hint = " The password of an encrypted key is ssl.key.password." if kind == "keystore" else ""
                raise InvalidConfigError(f"{prefix}.password is not allowed: PEM has none.{hint}")
            names = [f"{prefix}.{name}" for name in inline]
            given = [name for name in names if self._given(name) is not None]
            if given and location is not None:
                raise InvalidConfigError(f"{prefix}.location and {given[0]} exclude each other")
            if given and given != names:
                raise InvalidConfigError(f"{names[0]} and {names[1]} need each other")

    def _given(self, name: str) -> str | None:
        value: str | None = getattr(self, SECURITY_SETTINGS[name].attribute)
        return value

    def _check_sasl(self) -> None:
        mechanism = self.sasl_mechanism
        if mechanism is None:
            raise InvalidConfigError(f"sasl.mechanism is missing: {_MECHANISM.allowed}")
        if mechanism == OAUTHBEARER:
            self._check_oauth()
        elif self.sasl_jaas_config is None:
            raise InvalidConfigError(f"sasl.jaas.config is missing: {_example(mechanism)}")
        if self.sasl_jaas_config is not None and not is_reference(self.sasl_jaas_config):
            self.jaas(self.sasl_jaas_config)

    def _check_oauth(self) -> None:
        url = self.sasl_oauthbearer_token_endpoint_url
        if url is not None and not has_reference(url):
            check_endpoint(url)

    def jaas(self, text: str) -> Jaas:
        """The login module in ``sasl.jaas.config``, whose text may itself have come from a reference."""
        assert self.sasl_mechanism is not None
        try:
            found = parse_jaas(text)
        except ValueError as error:
            raise InvalidConfigError(f"sasl.jaas.config={HIDDEN} is not valid: {error}") from None
        module = MODULES[self.sasl_mechanism]
        if found.module != module:
            raise InvalidConfigError(
                f"sasl.jaas.config names the login module {found.module}, but {self.sasl_mechanism} needs {module}"
            )
        for number, name in enumerate(found.options, 1):
            is_other = self.sasl_mechanism == OAUTHBEARER and _is_oauth_option(name)
            if name not in _JAAS_OPTIONS[self.sasl_mechanism] and not is_other:
                known = ", ".join(sorted(_JAAS_OPTIONS[self.sasl_mechanism]))
                raise InvalidConfigError(
                    f"sasl.jaas.config: option {number} is none of {self.sasl_mechanism}'s, which are {known}"
                )
        for name in _CREDENTIALS if self.sasl_mechanism != OAUTHBEARER else ():
            if not found.options.get(name):
                raise InvalidConfigError(f"sasl.jaas.config has no {name}: {_example(self.sasl_mechanism)}")
        return found


SECURITY_SETTINGS: Final[dict[str, Setting]] = settings_of(SecurityConfig)
PLAINTEXT: Final = SecurityConfig()


def _is_oauth_option(name: str) -> bool:
    """Extensions of SASL, and the options of TLS to the token endpoint."""
    return name.startswith(EXTENSION) or (name.startswith("ssl.") and name in SECURITY_SETTINGS)


def check_endpoint(url: str) -> None:
    """`InvalidConfigError` if no token can come from this URL."""
    name = "sasl.oauthbearer.token.endpoint.url"
    try:
        parts = urlsplit(url)
        is_valid = parts.port is None or parts.port > 0
    except ValueError:
        is_valid = False
    if is_valid and parts.username is not None:
        raise InvalidConfigError(
            f"{name} must not have a user: set sasl.oauthbearer.client.credentials.client.id and .client.secret"
        )
    if is_valid and parts.scheme == "file":
        is_valid = parts.path.startswith("/") and not parts.hostname
    elif is_valid:
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname)
    if not is_valid:
        raise InvalidConfigError(f"{name}={url!r} is not allowed: https://HOST[:PORT]/PATH or file:///PATH")


def not_pem(kind: str, store_type: str, path: str) -> InvalidConfigError:
    """The error for a trust or key store that is not PEM, with the commands that convert it."""
    if kind == "truststore":
        command = f"keytool -list -rfc -keystore {path} > truststore.pem"
    elif store_type == "PKCS12":
        command = f"openssl pkcs12 -in {path} -out keystore.pem"
    else:
        command = (
            f"keytool -importkeystore -srckeystore {path} -destkeystore keystore.p12 -deststoretype PKCS12; "
            "openssl pkcs12 -in keystore.p12 -out keystore.pem"
        )
    return InvalidConfigError(f"ssl.{kind}.type={store_type} is not supported: convert it to PEM: {command}")


def _example(mechanism: str) -> str:
    return f'{MODULES[mechanism]} required username="…" password="…";'
