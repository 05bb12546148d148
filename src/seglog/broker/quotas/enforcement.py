"""Puts the cluster's quotas in force on this broker, as soon as they change."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from typing import Final, Protocol

from seglog.broker.quotas.client_quotas import ClientQuotas
from seglog.broker.quotas.request_quotas import RequestQuotas
from seglog.core.types import MAX_INT32

_log: Final = logging.getLogger("seglog.broker")


class LimitIps(Protocol):
    """As `seglog.net.connection_quotas.CreationRates.limit_ips`."""

    def __call__(self, of_ips: Mapping[str, int], of_others: int) -> None: ...


class Enforcement:
    """``charge_by`` gets the quotas of requests, or None while there are none; ``limit_ips`` the limits of addresses.
    Quotas may name hosts: `run` finds their addresses."""

    def __init__(
        self,
        quotas: ClientQuotas,
        requests: RequestQuotas,
        charge_by: Callable[[RequestQuotas | None], None],
        limit_ips: LimitIps,
    ) -> None:
        self._quotas = quotas
        self._requests = requests
        self._charge_by = charge_by
        self._limit_ips = limit_ips
        self._hosts_changed = asyncio.Event()
        self._of_hosts: dict[str, tuple[str, ...]] = {}
        """The addresses of hosts, as far as they are known."""
        self._seen_ips: Mapping[str | None, int] = {}
        quotas.changed.append(self._changed)
        self._changed()

    def _changed(self) -> None:
        self._charge_by(self._requests if self._requests.are_in_force else None)
        if self._quotas.of_ips is not self._seen_ips:
            self._seen_ips = self._quotas.of_ips
            self._limit_addresses()

    def _limit_addresses(self) -> None:
        of_ips, others = {}, MAX_INT32
        for name, most in self._quotas.of_ips.items():
            if name is None:
                others = most
                continue
            for ip in _as_address(name) or self._of_hosts.get(name, ()):
                of_ips[ip] = most
            if not _as_address(name) and name not in self._of_hosts:
                self._hosts_changed.set()
        self._limit_ips(of_ips, others)

    async def run(self) -> None:
        """Find the addresses of hosts until it is cancelled."""
        while True:
            await self._hosts_changed.wait()
            self._hosts_changed.clear()
            hosts = [name for name in self._quotas.of_ips if name is not None and not _as_address(name)]
            found = {name: self._of_hosts.get(name) or await _addresses(name) for name in hosts}
            self._of_hosts = found
            self._limit_addresses()


def _as_address(name: str) -> tuple[str, ...]:
    try:
        return (ip_address(name).compressed,)
    except ValueError:
        return ()


async def _addresses(host: str) -> tuple[str, ...]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        _log.error("the connection_creation_rate of %s is not in force: %s", host, error)
        return ()
    return tuple(str(address[0]) for *_, address in found)
