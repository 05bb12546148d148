"""Refuses listeners that let everybody in. Pure."""

from __future__ import annotations

from ipaddress import ip_address

from seglog.broker.security.listener_keys import METRICS, ListenerKeys
from seglog.core.addresses import Address, parse_host_port
from seglog.core.broker_config import OAUTHBEARER, BrokerConfig
from seglog.core.errors import InvalidConfigError

_KEY = "seglog.insecure.listeners"


def check_exposure(config: BrokerConfig) -> None:
    """`InvalidConfigError` if a client of another machine could connect without authentication, or would send its
    password in the clear, unless ``seglog.insecure.listeners`` allows it."""
    if config.seglog_insecure_listeners:
        return
    for address in config.broker_listeners:
        if not is_loopback(address):
            why = _why_not(config, address)
            if why is not None:
                raise InvalidConfigError(
                    f"listeners={address} is not allowed: other machines may reach it, and {why}. Listen on 127.0.0.1 "
                    f"instead, or allow it: --insecure, or {_KEY}=true"
                )
    if config.metrics_listener and not is_loopback(metrics := parse_host_port(config.metrics_listener)):
        keys = ListenerKeys(config, METRICS, protocol=metrics.name)
        if not keys.uses_tls or keys.text("ssl.client.auth") != "required":
            raise InvalidConfigError(
                f"metrics.listener={config.metrics_listener} is not allowed: every client that reaches it could read "
                "the names of topics and groups. Listen on 127.0.0.1, use SSL://HOST:PORT with "
                f"listener.name.metrics.ssl.client.auth=required, or allow it: --insecure, or {_KEY}=true"
            )


def admits_by_name(config: BrokerConfig, listener: str) -> bool:
    """Whether the clients of a listener authenticate."""
    keys = ListenerKeys(config, listener)
    return keys.uses_sasl or (keys.uses_tls and keys.text("ssl.client.auth") == "required")


def _why_not(config: BrokerConfig, address: Address) -> str | None:
    keys = ListenerKeys(config, address.name)
    if keys.uses_sasl:
        sent = [name for name in keys.mechanisms if name in ("PLAIN", OAUTHBEARER)]
        if not keys.uses_tls and sent:
            return f"{sent[0]} would send passwords or tokens without TLS (SASL_SSL has it, SCRAM does not send them)"
        return None
    if not keys.uses_tls:
        return f"{keys.protocol} lets every client do everything (SASL_SSL authenticates clients)"
    if keys.text("ssl.client.auth") != "required":
        return "SSL without ssl.client.auth=required lets every client do everything"
    return None


def is_loopback(address: Address) -> bool:
    """Whether only this machine can reach the address. A host name other than ``localhost`` does not tell."""
    try:
        return ip_address(address.host.partition("%")[0]).is_loopback
    except ValueError:
        return address.host.lower() == "localhost"
