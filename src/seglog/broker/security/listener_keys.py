"""The security keys of one listener: its own, and the broker's for all others (KIP-103)."""

from __future__ import annotations

import os
import stat
from abc import ABC, abstractmethod
from typing import Final

from seglog.client.security.jaas import Jaas, parse_jaas
from seglog.client.security.references import Secrets
from seglog.client.security.security_config import MODULES
from seglog.core.broker_config import BROKER_KEYS, JAAS, MECHANISMS, BrokerConfig
from seglog.core.errors import InvalidConfigError
from seglog.core.settings import HIDDEN

METRICS: Final = "METRICS"
"""The name of ``metrics.listener`` in keys: ``listener.name.metrics.<key>``."""


class TlsKeys(ABC):
    """The keys of one side of TLS, by their names without a prefix. Values may have references to secrets
    (`seglog.client.security.references`)."""

    def __init__(self, secrets: Secrets | None = None) -> None:
        self._secrets = Secrets() if secrets is None else secrets

    @abstractmethod
    def name(self, key: str) -> str:
        """The key as the user gave it, for errors."""

    @abstractmethod
    def text(self, key: str) -> str:
        """The value with all references resolved; "" if there is none. `InvalidConfigError` if one has no value."""

    def items(self, key: str) -> list[str]:
        """The elements of a list."""
        return [item for part in self.text(key).split(",") if (item := part.strip())]

    def read(self, key: str, path: str) -> bytes:
        """The content of the file that ``key`` names."""
        return self._secrets.read(self.name(key), path)

    def file_state(self, path: str) -> tuple[str, int, int] | None:
        """Changes when a file is replaced or written; None if it cannot be read."""
        try:
            found = self._secrets.stat(path)
        except OSError:
            return None
        return os.path.realpath(path), found.mtime_ms, found.size

    def is_public(self, path: str) -> bool:
        """Whether every user of this machine may read the file."""
        return bool(self._secrets.stat(path).mode & stat.S_IROTH)


class ListenerKeys(TlsKeys):
    """``listener`` is a name in capitals, ``own`` its own keys."""

    def __init__(
        self, config: BrokerConfig, listener: str, secrets: Secrets | None = None, *, protocol: str = ""
    ) -> None:
        """``protocol`` is that of a listener which the configuration does not have, such as `METRICS`."""
        super().__init__(secrets)
        self.listener = listener
        self.protocol = protocol or config.protocol(listener)
        self._config = config
        self.own = config.listener_keys.get(listener, {})

    @property
    def uses_tls(self) -> bool:
        return self.protocol.endswith("SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.protocol.startswith("SASL")

    def name(self, key: str) -> str:
        return f"listener.name.{self.listener.lower()}.{key}" if key in self.own else key

    def text(self, key: str) -> str:
        row = BROKER_KEYS[key]
        text = self.own[key] if key in self.own else row.rule.format(getattr(self._config, row.attribute))
        return self._secrets.resolve(self.name(key), text)

    def number(self, key: str) -> int:
        return int(self.text(key))

    # SASL

    @property
    def mechanisms(self) -> list[str]:
        """The enabled mechanisms of SASL. `InvalidConfigError` if there is none, or one that seglog lacks."""
        key = "sasl.enabled.mechanisms"
        found = [mechanism.upper() for mechanism in self.items(key)]
        others = [mechanism for mechanism in found if mechanism not in MECHANISMS]
        if others or not found:
            raise InvalidConfigError(
                f"{self.name(key)}={','.join(found)!r} is not allowed for the listener {self.listener}: "
                f"{', '.join(MECHANISMS)}, one or more"
            )
        return list(dict.fromkeys(found))

    def mechanism_name(self, mechanism: str, key: str) -> str:
        """As `name`, for a key that a mechanism may have for itself."""
        return self.name(own if (own := f"{mechanism.lower()}.{key}") in self.own else key)

    def mechanism_text(self, mechanism: str, key: str) -> str:
        """As `text`, for a key that a mechanism may have for itself."""
        own = f"{mechanism.lower()}.{key}"
        return self._secrets.resolve(self.name(own), self.own[own]) if own in self.own else self.text(key)

    def reauthentication_ms(self, mechanism: str) -> int:
        """The longest session of the mechanism; 0 if sessions do not end."""
        return int(self.mechanism_text(mechanism, "connections.max.reauth.ms"))

    def jaas(self, mechanism: str) -> Jaas | None:
        """The login module of a mechanism; None if there is none. `InvalidConfigError` shows no value of it."""
        key = f"{mechanism.lower()}.{JAAS}"
        if key not in self.own:
            return None
        name = self.name(key)
        try:
            found = parse_jaas(self._secrets.resolve(name, self.own[key]))
        except ValueError as error:
            raise InvalidConfigError(f"{name}={HIDDEN} is not valid: {error}") from None
        if found.module != MODULES[mechanism]:
            raise InvalidConfigError(
                f"{name} names the login module {found.module}, but {mechanism} needs {MODULES[mechanism]}"
            )
        return found
