"""`python -m docs_site [--write]`: gather the site's pages; or draw the layouts of `docs/formats.md` again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from docs_site.layouts import redraw
from docs_site.pages import gather

_ROOT: Final = Path(__file__).parents[1]
_FORMATS: Final = _ROOT / "docs" / "formats.md"

if "--write" in sys.argv[1:]:
    _FORMATS.write_text(redraw(_FORMATS.read_text()))
else:
    gather(_ROOT, _ROOT / ".cache" / "docs")
