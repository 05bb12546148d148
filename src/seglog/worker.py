"""`python -m seglog.worker <job>`: what a live process has done beside itself. Not for people to call.

``compact``: a round of compaction, which comes on stdin (`seglog.storage.compaction.child_process`).
``keep``: have a log directory open while Spark writes to it (`seglog.spark.write.directories.commit_coordinator`).
``warm``: compile all loops into numba's cache on disk, so that the first real call does not wait.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    match sys.argv[1:] if arguments is None else list(arguments):
        case ["compact"]:
            from seglog.storage.compaction.child_process import serve

            return serve(sys.stdin.buffer, sys.stdout)
        case ["keep", path, linger]:
            from seglog.spark.write.directories.commit_coordinator import keep

            return keep(path, float(linger))
        case ["warm"]:
            from seglog.sources.precompile import warm

            warm()
            return 0
        case other:
            print(f"seglog.worker: no job {' '.join(other)!r}: compact, keep or warm", file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main())
