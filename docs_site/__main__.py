"""`python -m docs_site [--write]`: gather the site's pages; or write again what the code defines in `docs/`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from docs_site import client_options
from docs_site.compatibility import compatibility
from docs_site.layouts import redraw
from docs_site.pages import gather
from docs_site.permissions import permissions
from docs_site.spark_options import write_tables

_ROOT: Final = Path(__file__).parents[1]
_FORMATS: Final = _ROOT / "docs" / "formats.md"
_COMPATIBILITY: Final = _ROOT / "docs" / "compatibility.md"
_CLIENTS: Final = _ROOT / "docs" / "clients.md"
_PERMISSIONS: Final = _ROOT / "docs" / "permissions.md"
_SPARK: Final = _ROOT / "docs" / "spark.md"

if "--write" in sys.argv[1:]:
    _FORMATS.write_text(redraw(_FORMATS.read_text()))
    _CLIENTS.write_text(client_options.write_tables(_CLIENTS.read_text()))
    _PERMISSIONS.write_text(permissions())
    _SPARK.write_text(write_tables(_SPARK.read_text()))
    _COMPATIBILITY.write_text(compatibility(_ROOT))
else:
    gather(_ROOT, _ROOT / ".cache" / "docs")
