"""References to secrets in a value, as Kafka's config providers have them (KIP-297, KIP-421, KIP-887).

===================================== =================================================================
``${file:/path/to.properties:key}``   the value of a key in a properties file (``FileConfigProvider``)
``${directory:/path:name}``           a file's content, without line ends at its end (``DirectoryConfigProvider``)
``${env:NAME}``                       an environment variable (``EnvVarConfigProvider``)
===================================== =================================================================

`check_references` needs no file. `Secrets.resolve` reads them on the machine that connects, each time again, so that a
secret can be replaced while a job runs. The text that a reference stands for is never searched for references again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

from seglog.client.security.properties import parse_properties
from seglog.core.errors import InvalidConfigError
from seglog.core.fs import FileStat, Fs, OsFs

_REFERENCE: Final = re.compile(r"\$\{([^}:]*):(?:([^}:]*):)?([^}]*)\}")
"""``ConfigTransformer.java``: provider, path, key. A key may contain colons, a path may not."""
FORMS: Final = ("${file:/path/to.properties:key}", "${directory:/path:file}", "${env:NAME}")
PROVIDERS: Final[Mapping[str, str]] = {
    "file": "org.apache.kafka.common.config.provider.FileConfigProvider",
    "directory": "org.apache.kafka.common.config.provider.DirectoryConfigProvider",
    "env": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
}
"""The providers that are always there, with their classes in Kafka."""
_MOST_BYTES: Final = 1 << 20


def has_reference(text: str) -> bool:
    return _REFERENCE.search(text) is not None


def is_reference(text: str) -> bool:
    """Whether the text is one reference and nothing else."""
    return _REFERENCE.fullmatch(text.strip()) is not None


def check_references(text: str) -> None:
    """ValueError if a reference is not one of `FORMS`, so that it has a value on no machine."""
    for found in _REFERENCE.finditer(text):
        provider, path, key = found.groups()
        if provider not in PROVIDERS or not key or bool(path) == (provider == "env"):
            raise ValueError("not a reference to a file, a directory or a variable")
        if provider == "directory" and ("/" in key or key in (".", "..")):
            raise ValueError("not a reference to a file of the directory")


class Secrets:
    """Resolves references on this machine. Errors name the file, key or variable, never a value."""

    def __init__(self, fs: Fs | None = None, environment: Mapping[str, str] | None = None) -> None:
        self._fs = OsFs() if fs is None else fs
        self._environment = os.environ if environment is None else environment

    def resolve(self, name: str, text: str) -> str:
        """The value of option ``name`` with all references replaced. `InvalidConfigError` if one has no value."""
        return _REFERENCE.sub(lambda found: self._value(name, found), text)

    def read(self, name: str, path: str) -> bytes:
        """The content of a file that option ``name`` names. Links are followed: Kubernetes mounts secrets as links."""
        try:
            size = self.stat(path).size
            data = self._fs.read(os.path.realpath(path)) if size <= _MOST_BYTES else b""
        except OSError as error:
            raise InvalidConfigError(f"{name}: {path}: {error.strerror or error}") from error
        if size > _MOST_BYTES:
            raise InvalidConfigError(f"{name}: {path} has {size} bytes: at most {_MOST_BYTES} are read")
        return data

    def stat(self, path: str) -> FileStat:
        """OSError if there is no such file."""
        return self._fs.stat(os.path.realpath(path))

    def read_text(self, name: str, path: str) -> str:
        try:
            return self.read(name, path).decode()
        except UnicodeDecodeError:
            raise InvalidConfigError(f"{name}: {path} is not a text in UTF-8") from None

    def _value(self, name: str, found: re.Match[str]) -> str:
        provider, path, key = found.groups()
        if provider == "env":
            value = self._environment.get(key)
            if value is None:
                raise InvalidConfigError(f"{name}: the environment variable {key} is not set on this machine")
            return value
        if provider == "directory":
            return self.read_text(name, f"{path}/{key}").rstrip("\r\n")
        try:
            properties = parse_properties(self.read_text(name, path))
        except ValueError as error:
            raise InvalidConfigError(f"{name}: {path}: {error}") from None
        if key not in properties:
            raise InvalidConfigError(f"{name}: {path} has no key {key}")
        return properties[key]
