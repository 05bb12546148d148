"""Logins that fail: `python -m tests.broker.security.failing_logins HOST:PORT RATE SECONDS` tries so many a second.

In turn a wrong password by PLAIN, an unknown user, and wrong proofs by SCRAM, each on a connection of its own. At the
end it prints how many the broker has refused, and how many connections broke before.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import re
import struct
import sys
import time
from collections.abc import Iterator
from typing import Final, NamedTuple

from seglog.core.error_codes import ErrorCode
from seglog.protocol.apis import ApiKey
from seglog.protocol.message_writer import write_message
from seglog.protocol.schema import request_class

_VERSION: Final = 1
_NONCE: Final = re.compile(rb"r=[^,]+")
_ERROR: Final = struct.Struct(">4xh")
_AT_ONCE: Final = 500
_PROOF: Final = base64.b64encode(bytes(32)).decode()


class Attempt(NamedTuple):
    mechanism: str
    user: str


ATTEMPTS: Final = (
    Attempt("PLAIN", "alice"),
    Attempt("PLAIN", "nobody"),
    Attempt("SCRAM-SHA-256", "alice"),
    Attempt("SCRAM-SHA-256", "nobody"),
)


def _frame(key: ApiKey, **contents: object) -> bytes:
    body = write_message(request_class(key, _VERSION), contents)
    return struct.pack(">ihhih", len(body) + 10, key, _VERSION, 1, 0) + body


async def fail_to_log_in(host: str, port: int, attempt: Attempt) -> int:
    """The code with which the broker refuses. OSError or EOFError if it does not answer."""
    reader, writer = await asyncio.open_connection(host, port)

    async def ask(key: ApiKey, **contents: object) -> bytes:
        writer.write(_frame(key, **contents))
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        return await reader.readexactly(size)

    async def authenticate(message: str) -> bytes:
        return await ask(ApiKey.SASL_AUTHENTICATE, auth_bytes=message.encode())

    try:
        await ask(ApiKey.SASL_HANDSHAKE, mechanism=attempt.mechanism)
        if attempt.mechanism == "PLAIN":
            answer = await authenticate(f"\0{attempt.user}\0guessed")
        else:
            answer = await authenticate(f"n,,n={attempt.user},r=client")
            if (nonce := _NONCE.search(answer)) is not None:  # Kafka refuses unknown users here
                answer = await authenticate(f"c=biws,{nonce[0].decode()},p={_PROOF}")
        (code,) = _ERROR.unpack_from(answer)
        return int(code)
    finally:
        writer.close()


async def fail_often(host: str, port: int, attempts: Iterator[Attempt], *, rate: float = 0.0) -> list[int | Exception]:
    """How each attempt ended; at most so many a second, if that is given."""
    room = asyncio.Semaphore(_AT_ONCE)
    began = time.monotonic()

    async def one(attempt: Attempt) -> int | Exception:
        try:
            return await fail_to_log_in(host, port, attempt)
        except (OSError, EOFError) as error:
            return error
        finally:
            room.release()

    tasks = []
    async with asyncio.TaskGroup() as group:
        for number, attempt in enumerate(attempts):
            await room.acquire()
            if rate:
                await asyncio.sleep(began + number / rate - time.monotonic())
            tasks.append(group.create_task(one(attempt)))
    return [task.result() for task in tasks]


def main(address: str, rate: float, seconds: float) -> None:
    host, _, port = address.rpartition(":")
    attempts = itertools.islice(itertools.cycle(ATTEMPTS), round(rate * seconds))
    began = time.monotonic()
    ended = asyncio.run(fail_often(host, int(port), attempts, rate=rate))
    took = time.monotonic() - began
    refused = ended.count(ErrorCode.SASL_AUTHENTICATION_FAILED)
    print(f"{refused} refused, {refused / took:.0f} a second; {len(ended) - refused} without an answer")


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))
