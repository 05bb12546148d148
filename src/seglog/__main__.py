"""The entry of `seglog` and `python -m seglog`: Ctrl-C ends a command without a traceback, also while modules load."""

from __future__ import annotations

import sys

_INTERRUPTED = 130


def main() -> int:
    try:
        from seglog.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        return _INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
