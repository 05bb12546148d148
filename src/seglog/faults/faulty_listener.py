"""A listener whose connections pass through a `FaultLayer`."""

from __future__ import annotations

import socket

from seglog.core.addresses import Address
from seglog.faults.fault_layer import FaultLayer
from seglog.net.connection import FrameHandler, reset_on_close
from seglog.net.connection_quotas import ConnectionQuotas
from seglog.net.listener import Listener

__all__ = ["FaultyListener"]


class FaultyListener(Listener):
    """Refuses connections while the layer says so: they are reset as soon as they are accepted."""

    def __init__(self, layer: FaultLayer, address: Address, handler: FrameHandler, quotas: ConnectionQuotas) -> None:
        super().__init__(address, layer.around(handler), quotas)
        self._layer = layer

    async def _begin(self, raw: socket.socket, peer: str) -> None:
        if self._layer.refuses():
            reset_on_close(raw)
            raw.close()
        else:
            await super()._begin(raw, peer)
