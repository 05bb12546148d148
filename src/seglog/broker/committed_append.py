"""The wait of an append with acks=all that answers no Produce request: markers, and segments that were taken over."""

from __future__ import annotations

import asyncio

from seglog.core.error_codes import ErrorCode
from seglog.replication.replica import Replica
from seglog.replication.waiters import GrowthWaiter


async def until_committed(replica: Replica, leader_epoch: int, end: int, seconds: float) -> ErrorCode:
    """NONE when everything below ``end``, appended in ``leader_epoch``, is committed; the error if it is certainly not,
    and REQUEST_TIMED_OUT after so many ``seconds``."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while (code := replica.outcome(leader_epoch, end)) is None:
        left = deadline - loop.time()
        if left <= 0:
            return ErrorCode.REQUEST_TIMED_OUT
        waiter = GrowthWaiter(1, left)
        replica.waiters[waiter] = None
        try:
            await waiter.wait()
        finally:
            replica.waiters.pop(waiter, None)
    return ErrorCode(code)
