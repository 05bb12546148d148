"""Options of TLS and SASL that need, or exclude, each other."""

from __future__ import annotations

import re
from typing import Any

import pytest

from seglog.client.security.security_config import SecurityConfig
from seglog.core.errors import InvalidConfigError

_MODULES = "org.apache.kafka.common.security"
_PLAIN = f'{_MODULES}.plain.PlainLoginModule required username="alice" password="geheim";'
_OAUTH = f"{_MODULES}.oauthbearer.OAuthBearerLoginModule required"


def sasl(mechanism: str | None, jaas: str | None, **options: Any) -> SecurityConfig:
    return SecurityConfig(
        security_protocol="sasl_plaintext", sasl_mechanism=mechanism, sasl_jaas_config=jaas, **options
    )


def test_protocols() -> None:
    found = {}
    for name in ("PLAINTEXT", "ssl", "SASL_SSL", "Sasl_Plaintext"):
        made = SecurityConfig(security_protocol=name, sasl_mechanism="PLAIN", sasl_jaas_config=_PLAIN)
        found[name] = made.uses_tls, made.uses_sasl
    assert found == {
        "PLAINTEXT": (False, False),
        "ssl": (True, False),
        "SASL_SSL": (True, True),
        "Sasl_Plaintext": (False, True),
    }


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ssl_truststore_location": "/a", "ssl_truststore_certificates": "geheim"}, "exclude each other"),
        ({"ssl_keystore_location": "/a", "ssl_keystore_key": "geheim"}, "exclude each other"),
        ({"ssl_keystore_key": "geheim"}, "ssl.keystore.certificate.chain and ssl.keystore.key need each other"),
        ({"ssl_keystore_certificate_chain": "geheim"}, "need each other"),
        ({"ssl_truststore_password": "geheim"}, "ssl.truststore.password is not allowed: PEM has none"),
        ({"ssl_keystore_password": "geheim"}, "is ssl.key.password"),
        ({"ssl_truststore_type": "jks", "ssl_truststore_location": "/a.jks"}, "-keystore /a.jks > truststore.pem"),
        ({"ssl_truststore_type": "PKCS12"}, "keytool -list -rfc -keystore <truststore>"),
        (
            {"ssl_keystore_type": "JKS", "ssl_keystore_location": "/a.jks"},
            "keytool -importkeystore -srckeystore /a.jks",
        ),
        ({"ssl_keystore_type": "PKCS12", "ssl_keystore_location": "/a"}, "openssl pkcs12 -in /a -out keystore.pem"),
        ({"ssl_keystore_type": "BCFKS"}, "ssl.keystore.type='BCFKS' is not allowed"),
        ({"ssl_enabled_protocols": "TLSv1.1"}, "TLSv1.2, TLSv1.3"),
        ({"ssl_endpoint_identification_algorithm": "none"}, "ssl.endpoint.identification.algorithm='none'"),
        ({"ssl_cipher_suites": "TLS_RSA_WITH_RC4_128_MD5"}, "TLS_AES_256_GCM_SHA384"),
        ({"ssl_key_password": "${vault:geheim}"}, "ssl.key.password=[hidden] is not allowed"),
    ],
)
def test_options_of_tls_that_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidConfigError, match=re.escape(words)) as raised:
        SecurityConfig(security_protocol="SSL", **options)
    assert "geheim" not in str(raised.value)
    assert raised.value.__cause__ is None or "geheim" not in str(raised.value.__cause__)


def test_options_of_tls_do_not_matter_without_it() -> None:
    SecurityConfig(ssl_truststore_type="JKS", ssl_truststore_location="/a.jks", ssl_truststore_password="p")


@pytest.mark.parametrize(
    ("mechanism", "jaas", "words"),
    [
        (None, _PLAIN, "sasl.mechanism is missing: PLAIN, SCRAM-SHA-256"),
        ("PLAIN", None, 'required username="…" password="…";'),
        ("PLAIN", _PLAIN[:-1], "sasl.jaas.config=[hidden] is not valid"),
        ("SCRAM-SHA-256", _PLAIN, "SCRAM-SHA-256 needs org.apache.kafka.common.security.scram.ScramLoginModule"),
        ("PLAIN", _PLAIN.replace("username", "user"), "option 1 is none of PLAIN's, which are password, username"),
        ("PLAIN", _PLAIN.replace("geheim", ""), "sasl.jaas.config has no password"),
        ("PLAIN", _PLAIN.replace("geheim", "${env:}"), "sasl.jaas.config=[hidden] is not allowed"),
        ("OAUTHBEARER", f'{_OAUTH} clientid="geheim";', "clientId, clientSecret"),
        ("OAUTHBEARER", f'{_OAUTH} ssl.other="geheim";', "clientId, clientSecret"),
    ],
)
def test_login_modules_that_are_refused(mechanism: str | None, jaas: str | None, words: str) -> None:
    with pytest.raises(InvalidConfigError, match=re.escape(words)) as raised:
        sasl(mechanism, jaas)
    assert "geheim" not in str(raised.value)


@pytest.mark.parametrize(
    "url", ["ftp://a/b", "https:///a", "file://host/a", "file:a", "a", "", "https://[a", "http://a:99999/"]
)
def test_token_endpoints_that_are_refused(url: str) -> None:
    with pytest.raises(InvalidConfigError, match=re.escape("https://HOST[:PORT]/PATH or file:///PATH")):
        sasl("OAUTHBEARER", None, sasl_oauthbearer_token_endpoint_url=url)


def test_a_password_in_an_endpoint_is_refused_and_not_shown() -> None:
    with pytest.raises(InvalidConfigError, match="must not have a user") as raised:
        sasl("OAUTHBEARER", None, sasl_oauthbearer_token_endpoint_url="https://me:geheim@a/b")
    assert "geheim" not in str(raised.value)


@pytest.mark.parametrize(
    "jaas",
    [
        f'{_OAUTH} clientId="a" clientSecret="b" scope="c" extension_logicalCluster="lkc-1";',
        f'{_OAUTH} token="${{file:/a:b}}" ssl.truststore.location="/a";',
        "${file:/a:b}",
        None,
    ],
)
def test_login_modules_of_oauth(jaas: str | None) -> None:
    assert sasl("OAUTHBEARER", jaas).uses_sasl
