"""Options whose values are words: each word, misspelled."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from seglog.core.errors import InvalidConfigError
from seglog.sources.options.option import Option

_WORD = re.compile(r"`([A-Za-z_-]{4,})`")


def answers(
    options: Mapping[str, Option], parse: Callable[[Mapping[str, str]], object], **always: str
) -> Iterator[tuple[str, str]]:
    """Each word of the values of ``options``, with the error for the word without its last letter but one. Where an
    option takes any text, there is none. ``always``: options that are set in any case."""
    for option in options.values():
        for word in _WORD.findall(option.values):
            wrong = word[:-2] + word[-1]
            try:
                parse({**always, option.name: wrong})
            except InvalidConfigError as error:
                if repr(wrong) in str(error):
                    yield word, str(error)
