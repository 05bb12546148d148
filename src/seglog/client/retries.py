"""The pauses of a client between its tries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from seglog.client.client_config import ClientConfig
from seglog.core.clock import SystemClock
from seglog.core.errors import BrokerUnavailableError, RequestFailedError

_BUSY_PAUSE: Final = 0.005
_LONGEST_BUSY_PAUSE: Final = 0.1

Answer = TypeVar("Answer")


class Retries:
    """The pauses between tries, up to ``patience`` seconds in all."""

    def __init__(self, config: ClientConfig, patience: float) -> None:
        self._clock = SystemClock()
        self._end = self._clock.monotonic() + patience
        self._pause = config.retry_backoff
        self._longest = config.retry_backoff_max
        self._busy_pause = _BUSY_PAUSE

    def wait(self, problem: str, *, is_busy: bool = False) -> None:
        """Before the next try. `RequestFailedError` with ``problem`` if there is no time left for one."""
        seconds = self._busy_pause if is_busy else self._pause
        if self._clock.monotonic() + seconds > self._end:
            raise RequestFailedError(problem)
        self._clock.sleep(seconds)
        if is_busy:
            self._busy_pause = min(self._busy_pause * 2, _LONGEST_BUSY_PAUSE)
        else:
            self._pause = min(self._pause * 2, self._longest)


def ask_patiently(config: ClientConfig, patience: float, ask: Callable[[], Answer]) -> Answer:
    """The answer of ``ask``, which is called again while no broker can be reached: the only one may start again.

    After ``patience`` seconds its last `BrokerUnavailableError` is raised.
    """
    retries = Retries(config, patience)
    while True:
        try:
            return ask()
        except BrokerUnavailableError as error:
            try:
                retries.wait(str(error))
            except RequestFailedError:
                raise error from None
