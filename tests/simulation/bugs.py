"""Bugs of a lone broker, put in on purpose."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import NamedTuple

import pytest

from seglog.core.errors import InvalidRequestError, SeglogError
from seglog.net.connection import ClientConnection
from seglog.storage.log.producers import Producers

Patch = pytest.MonkeyPatch


class Bug(NamedTuple):
    """``read_errors``: the share of seeds in which reads of logs fail. ``seed`` is one that finds it soon."""

    name: str
    plant: Callable[[Patch], None]
    read_errors: float
    seed: int


def _answer_left_out(patch: Patch) -> None:
    """After an answer that waits and fails, the connection goes on with the next request."""

    async def carry_on_after(self: ClientConnection, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except InvalidRequestError as error:
            self._task = None
            self._fail(error)
            return
        except (SeglogError, OSError):
            pass
        self._task = None
        if self._is_open and not self._is_finishing:
            self._handle_frames()
            self._resume()

    patch.setattr(ClientConnection, "_carry_on_after", carry_on_after)


def _last_batch_only(patch: Patch) -> None:
    """After a start from a snapshot, a producer's last batch is the only one that is recognised."""
    patch.setattr(Producers, "may_have_forgotten", lambda *_: False)


BUGS = (
    Bug("answer-left-out", _answer_left_out, read_errors=1.0, seed=8),
    Bug("last-batch-only", _last_batch_only, read_errors=0.0, seed=62),
)
