"""`seglog spark package`: a Python environment in one file, for executors on which nothing is installed."""

from __future__ import annotations

from typing import Annotated

import typer

from seglog.cli.output import FINE, Out, format_size
from seglog.cli.spark.session import Json


def package(
    file: Annotated[str, typer.Argument(metavar="FILE.tar.gz", help="The archive to write.", show_default=False)],
    extra: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Also pack the requirements of seglog[NAME], such as formats (repeatable)."),
    ] = None,
    with_: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="PACKAGE", help="Also this installed package; repeat the option for more."),
    ] = None,
    json: Json = False,
) -> int:
    """Pack seglog, the packages that it needs and its compiled loops; that takes a minute.

    Executors need Spark and a Python of this version, and nothing else. Prints the options for spark-submit.
    """
    from seglog.spark.runtime.python_archive import make_archive

    made = make_archive(file, extra or (), with_ or ())
    with Out() as out:
        if json:
            out.json({**made._asdict(), "sparkSubmit": made.spark_submit, "unpack": made.unpack})
            return FINE
        out.line(f"{made.path}: {format_size(made.size)}, Python {made.python}, {made.system}")
        out.line(", ".join(f"{name} {version}" for name, version in made.packages.items()))
        out.line(f"{made.spark_submit} …")
        out.line(f"In client mode, also where the driver runs: {made.unpack}")
    return FINE
