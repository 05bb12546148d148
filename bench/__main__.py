"""`python -m bench`: all benchmarks; `python -m bench append dump`: those whose names contain one of the words."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import bench


def main(words: list[str]) -> int:
    names = sorted(module.name for module in pkgutil.iter_modules(bench.__path__) if module.name.startswith("bench_"))
    chosen = [name for name in names if not words or any(word in name for word in words)]
    if not chosen:
        print(f"no benchmark is called {' or '.join(words)}: there are {', '.join(names)}", file=sys.stderr)
        return 2
    for name in chosen:
        print(f"\n== {name.removeprefix('bench_')}")
        importlib.import_module(f"bench.{name}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
