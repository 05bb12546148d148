"""Passwords that a command asks for: never as an option, where `ps` would show them."""

from __future__ import annotations

from getpass import getpass

from seglog.cli.options import OptionError


def read_password(user: str, path: str | None) -> str:
    """From the file, or from the terminal, where it is not shown. `OptionError` if it is empty."""
    if path is None:
        password = getpass(f"password of {user}: ")
    else:
        from seglog.client.security.references import Secrets

        password = Secrets().read_text("--password-file", path).partition("\n")[0].rstrip("\r")
    if not password:
        raise OptionError("the password is empty")
    return password
