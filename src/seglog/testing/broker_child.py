"""The process of a `ProcessRunner`: a broker in a thread, and commands from standard input until that ends."""

from __future__ import annotations

import gc
import json
import logging
import signal
import sys
from collections.abc import Mapping
from typing import Any

from seglog.core.errors import SeglogError
from seglog.core.quick_imports import hide_hypothesis


def main() -> int:
    logging.basicConfig(level=logging.WARNING, format="seglog broker: %(levelname)s %(name)s: %(message)s")
    gc.disable()  # while modules are loaded
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hide_hypothesis()
    from seglog.testing.broker_thread import ThreadRunner

    runner = ThreadRunner()
    for line in sys.stdin:
        print(json.dumps(_answer(runner, json.loads(line))), flush=True)
        gc.enable()
    runner.stop()
    return 0


def _answer(runner: Any, command: Mapping[str, Any]) -> dict[str, object]:
    from seglog.faults.topic_fixture import fixture_from_json

    ((verb, argument),) = command.items()

    def fixtures(documents: Mapping[str, Any]) -> dict[str, object]:
        return {name: fixture_from_json(one) for name, one in documents.items()}

    acts = {
        "start": lambda: runner.start(argument[0], fixtures(argument[1]), argument[2]),
        "reset": lambda: runner.reset(fixtures(argument)),
        "create": lambda: runner.create_topic(argument[0], fixture_from_json(argument[1])),
        "control": lambda: runner.control(*argument),
    }
    try:
        return {"result": acts[verb]()}
    except SeglogError as error:
        return {"error": type(error).__name__, "message": str(error)}
    except OSError as error:
        return {"error": "OSError", "message": str(error), "arguments": [error.errno, error.strerror, error.filename]}


if __name__ == "__main__":
    sys.exit(main())
