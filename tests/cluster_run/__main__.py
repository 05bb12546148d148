"""A storm of one's own: ``python -m tests.cluster_run --seconds 600 --seed 5 --brokers 5 --servers 3``."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from tests.cluster_run.storm import Storm, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster_run", description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--servers", type=int, default=0, help="of ZooKeeper: 1 or 3; 0: SQLite")
    parser.add_argument("--pace", type=float, default=0.02, help="seconds between two rounds of a producer")
    storm = Storm(**vars(parser.parse_args()))
    keep = Path(tempfile.mkdtemp(prefix="seglog-storm-kept-"))
    print(f"{storm}; what is wrong goes to {keep}", flush=True)
    outcome = run(storm, keep)
    print(outcome.describe())
    if not outcome.wrong:
        keep.rmdir()
    return bool(outcome.wrong)


if __name__ == "__main__":
    raise SystemExit(main())
