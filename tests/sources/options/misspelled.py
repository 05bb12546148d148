"""Options whose values are words: each word, misspelled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from seglog.core.errors import InvalidConfigError
from seglog.core.settings import Boolean, Enumeration, Setting

_WORDS = {
    "startingOffsets": ("earliest", "latest"),
    "endingOffsets": ("earliest", "latest"),
    "compression.type": ("gzip", "snappy", "zstd"),
}
"""Those of options that also take other texts."""


def answers(
    options: Mapping[str, Setting], parse: Callable[[Mapping[str, str]], object], **always: str
) -> Iterator[tuple[str, str]]:
    """Each word of the values of ``options``, with the error for the word without its last letter but one. Where an
    option takes any text, there is none. ``always``: options that are set in any case."""
    for option in options.values():
        words = option.rule.choices if isinstance(option.rule, Enumeration) else _WORDS.get(option.name, ())
        for word in ("true", "false") if isinstance(option.rule, Boolean) else words:
            wrong = word[:-2] + word[-1]
            try:
                parse({**always, option.name: wrong})
            except InvalidConfigError as error:
                if repr(wrong) in str(error):
                    yield word, str(error)
