"""Commands on files: `seglog ls`, `find`, `verify`, `repair`, and `perf` of the engine."""
