"""`seglog console` as a process, and requests to it as a program or as a browser sends them."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode, urlsplit

TOKEN: Final = "a-token-of-the-tests"
_SECONDS: Final = 60


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)


class Asked(NamedTuple):
    """Sends requests to the console at ``port``."""

    port: int

    def send(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> Answer:
        """With these headers alone; Host is the console's unless it is given."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_SECONDS)
        try:
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def ask(self, name: str, **values: object) -> Any:
        """The document of an operation, asked by a program."""
        answer = self.answer(name, **values)
        assert answer.status == 200, answer.document
        return answer.document

    def answer(self, name: str, **values: object) -> Answer:
        query = urlencode({key.rstrip("_"): value for key, value in values.items()})
        return self.send("GET", f"/api/{name}?{query}", {"Authorization": f"Bearer {TOKEN}"})

    def post(self, name: str, **values: object) -> Answer:
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        return self.send("POST", f"/api/{name}", headers, json.dumps(values).encode())


class Started(NamedTuple):
    """A running console: its first address, and the process that prints the next ones."""

    url: str
    process: subprocess.Popen[str]

    @property
    def asked(self) -> Asked:
        port = urlsplit(self.url).port
        assert port is not None
        return Asked(port)

    def next_url(self) -> str:
        """The address that follows the one that was spent last."""
        assert self.process.stdout is not None
        return str(json.loads(self.process.stdout.readline())["url"])


@contextmanager
def start(where: Path, *arguments: str) -> Iterator[Started]:
    """Run the command with a token for programs, until the end of the context."""
    token = where / "token"
    token.write_text(f"{TOKEN}\n")
    token.chmod(0o600)
    options = ["--json", "--until-eof", "--token-file", str(token)]
    command = [sys.executable, "-m", "seglog", "console", *arguments, *options]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "the console ended at once"
        yield Started(json.loads(line)["url"], process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(_SECONDS) == 0
        if process.stdout is not None:
            process.stdout.close()
