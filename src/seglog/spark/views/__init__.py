"""The views as Spark shows them (option ``view``): their columns and readers.

The rows are those of `seglog.sources.views` and `seglog.sources.latest`; `latest_frames` divides one large partition by
Spark's shuffle.
"""
