"""`seglog completion`: the script that completes commands, options, their values, topics and groups in a shell.

The script calls `seglog __complete`, which prints the candidates for the last word of a command line. Everything that
it knows comes from the declarations of the commands. The metavar of a parameter tells what its value is: ``a|b`` are
the values that it allows (a part in capitals stands for any), TOPIC and GROUP are asked from the brokers, FILE, DIR
and their like are left to the shell. `seglog.cli.main` passes the commands.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple

import typer

from seglog.cli.options import OptionError, check_choice
from seglog.cli.output import FINE, Out
from seglog.core.errors import SeglogError

SHELLS: Final = ("bash", "zsh", "fish")
FILES: Final = ":files"
"""Printed instead of candidates: the shell completes file names."""
_FILE_METAVARS: Final = frozenset(
    ("CSV", "DIR", "FILE", "FILE.tar.gz", "LEFT", "LOG", "OUT", "PARTITION", "PATH", "RIGHT", "WAREHOUSE")
)
_ANSWER_SECONDS: Final = 2.0
"""A shell waits for the answer of the brokers at most this long; without it nothing is completed."""
_BREAKS: Final = frozenset("=:")
"""Characters at which bash starts a new word (COMP_WORDBREAKS), besides blanks and quotes."""

_USE: Final = (
    'Your shell. In ~/.bashrc or ~/.zshrc: eval "$(seglog completion bash)", or zsh. In ~/.config/fish/config.fish: '
    "seglog completion fish | source."
)

_BASH: Final = """\
_seglog() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        if [[ $line == ':files' ]]; then
            compopt -o default
        else
            line="${line%%$'\\t'*}"
            [[ $line == *= ]] && compopt -o nospace
            COMPREPLY+=("$line")
        fi
    done < <(seglog __complete bash "${COMP_LINE:0:COMP_POINT}" "${COMP_WORDS[COMP_CWORD]}" 2>/dev/null)
}
complete -F _seglog seglog
"""
_ZSH: Final = """\
#compdef seglog
_seglog() {
    local line
    local -a found shown
    for line in "${(@f)$(seglog __complete zsh "${(@Q)words[2,CURRENT]}" 2>/dev/null)}"; do
        case $line in
            '') ;;
            ':files') [[ $PREFIX == --*=* ]] && compset -P 1 '*='; _files; return ;;
            *) found+=("${line%%$'\\t'*}"); shown+=("${line/$'\\t'/  -- }") ;;
        esac
    done
    compadd -l -d shown -a found
}
if [[ $funcstack[1] == _seglog ]]; then _seglog "$@"; else compdef _seglog seglog; fi
"""
_FISH: Final = """\
function __seglog_complete
    set -l words (commandline -opc)
    set -l last (commandline -ct)
    for line in (seglog __complete fish $words[2..-1] -- $last 2>/dev/null)
        if test "$line" = ':files'
            set -l option (string match -r -- '^--[^=]*=' $last)
            for path in (__fish_complete_path (string replace -- "$option" '' $last))
                echo "$option$path"
            end
        else
            echo $line
        end
    end
end
complete -c seglog -f -a '(__seglog_complete)'
"""
_SCRIPTS: Final = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


class Candidate(NamedTuple):
    """A word, and a few words about it for shells that show them."""

    word: str
    help: str = ""


class _Line(NamedTuple):
    """The words of a command after its name, read with its parameters."""

    values: Mapping[str, list[str]]
    """The values of options, by the names of parameters."""
    arguments: int
    """The number of arguments before the last word."""
    open_option: Any
    """The option whose value the last word is; None for any other word."""
    only_arguments: bool
    """There was a `--`."""


def completion(
    shell: Annotated[str, typer.Argument(metavar="|".join(SHELLS), help=_USE, show_default=False)],
) -> int:
    """Print the script that completes commands, options, values, topics and groups."""
    check_choice("the shell", shell, SHELLS)
    with Out() as out:
        out.write(_SCRIPTS[shell])
    return FINE


def print_candidates(arguments: Sequence[str], app: typer.Typer, words: Sequence[str]) -> int:
    """Print the candidates for the last of ``words`` (see `words_of`), one to a line: the word, a tab, its help.

    Nothing is printed for words that make no sense, nor if the brokers do not answer: a shell has no place for errors.
    """
    cut = 0
    if arguments[:1] == ["bash"]:
        here = arguments[2] if len(arguments) > 2 else ""
        last = words[-1]
        if last.endswith(here) or here in _BREAKS:
            cut = len(last) - (0 if here in _BREAKS else len(here))
    with Out() as out:
        for one in candidates(typer.main.get_command(app), words):
            text = one.word if one.word == FILES else one.word[cut:]
            out.line(f"{text}\t{one.help}" if one.help else text)
    return FINE


def words_of(arguments: Sequence[str]) -> list[str]:
    """The words after `seglog`, as the scripts pass them: bash passes the line, as it splits words at = and :.

    >>> words_of(["bash", "seglog consume --offset=be", "be"]), words_of(["zsh", "topics", ""])
    (['consume', '--offset=be'], ['topics', ''])
    >>> words_of(["fish", "topics", "--", "li"]), words_of(["bash", "seglog topics ", ""])
    (['topics', 'li'], ['topics', ''])
    """
    shell, *given = arguments or [""]
    if shell == "fish":
        *before, _, last = given
        return [*before, last]
    if shell != "bash":
        return list(given) or [""]
    line = given[0] if given else ""
    reader = shlex.shlex(line, posix=True, punctuation_chars="")
    reader.whitespace_split, reader.commenters = True, ""
    words: list[str] = []
    try:
        words.extend(reader)
    except ValueError:  # an open quote: the rest of the line is the last word
        words.append(reader.token)
    if line[-1:].isspace() and not line.endswith("\\ "):
        words.append("")
    return words[1:] or [""]


def candidates(app: Any, words: Sequence[str]) -> list[Candidate]:
    """What the last of ``words`` may become."""
    *before, last = words
    command = app
    while before and (inner := getattr(command, "commands", {}).get(before[0])) is not None:
        command, before = inner, before[1:]
    commands: Mapping[str, Any] = getattr(command, "commands", {})
    if commands:
        if before:
            return []
        found = [Candidate(name, one.short_help or one.help or "") for name, one in commands.items() if not one.hidden]
        return _beginning(last, [*_options(command), *found] if last.startswith("-") else found)
    line = _read(command, before)
    if line.open_option is not None:
        return _values(line.open_option, last, line)
    name, equals, value = last.partition("=")
    if last.startswith("-") and not line.only_arguments:
        if not equals:
            return _beginning(last, _options(command))
        option = _option(command, name)
        return [
            one if one.word == FILES else Candidate(f"{name}={one.word}", one.help)
            for one in ([] if option is None or option.is_flag else _values(option, value, line))
        ]
    parameter = _argument(command, line.arguments)
    return [] if parameter is None else _values(parameter, last, line)


def _options(command: Any) -> list[Candidate]:
    found = [Candidate("--help", "Show this message and exit.")]
    for one in command.params:
        if one.param_type_name == "option" and not one.hidden:
            found += [Candidate(name, one.help or "") for name in (*one.opts, *one.secondary_opts)]
    return [Candidate(word, text.partition("\n")[0]) for word, text in found if word.startswith("--")]


def _option(command: Any, name: str) -> Any:
    for one in command.params:
        if one.param_type_name == "option" and name in (*one.opts, *one.secondary_opts):
            return one
    return None


def _argument(command: Any, number: int) -> Any:
    """The argument that a word stands for, which follows ``number`` of them; the last takes all if it can."""
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    if number < len(arguments):
        return arguments[number]
    return arguments[-1] if arguments and arguments[-1].nargs == -1 else None


def _read(command: Any, words: Iterable[str]) -> _Line:
    values: dict[str, list[str]] = {}
    arguments, open_option, only_arguments = 0, None, False
    for word in words:
        if open_option is not None:
            values.setdefault(open_option.name, []).append(word)
            open_option = None
        elif word == "--" and not only_arguments:
            only_arguments = True
        elif only_arguments or not word.startswith("-") or word == "-":
            arguments += 1
        else:
            name, equals, value = word.partition("=")
            if not word.startswith("--"):
                name, value = word[:2], word[2:]
            option = _option(command, name)
            if option is None or option.is_flag:
                continue
            if equals or value:
                values.setdefault(option.name, []).append(value)
            else:
                open_option = option
    return _Line(values, arguments, open_option, only_arguments)


def _values(parameter: Any, last: str, line: _Line) -> list[Candidate]:
    metavar = str(parameter.metavar or "").strip("[].")
    name = re.split(r"[\[\]. ]", metavar)[0]
    if "|" in metavar:
        return _beginning(last, [Candidate(word) for word in metavar.split("|") if word == word.lower()])
    if metavar in _FILE_METAVARS or name in _FILE_METAVARS:
        return [Candidate(FILES)]
    if name == "TOPIC":
        return _internal_last(last, _asked(line, "topics"))
    if name == "GROUP":
        return _beginning(last, _asked(line, "groups"))
    return []


def _beginning(word: str, found: Iterable[Candidate]) -> list[Candidate]:
    return [one for one in found if one.word.startswith(word)]


def _internal_last(word: str, found: Iterable[Candidate]) -> list[Candidate]:
    """Kafka's own topics only for a word that begins with an underscore."""
    return [one for one in _beginning(word, found) if word.startswith("_") or not one.word.startswith("__")]


def _asked(line: _Line, what: str) -> list[Candidate]:
    from seglog.cli.wire.clients import DEFAULT_BROKERS
    from seglog.cli.wire.groups import listed_groups

    def given(name: str) -> list[str]:
        return line.values.get(name, [])

    bootstrap = (*given("bootstrap"), os.environ.get("SEGLOG_BOOTSTRAP"), DEFAULT_BROKERS.bootstrap)
    try:
        brokers = DEFAULT_BROKERS._replace(
            bootstrap=next(one for one in bootstrap if one),
            properties=given("properties") or None,
            command_config=next(iter(given("command_config")), None),
            timeout=_ANSWER_SECONDS,
        )
        cluster = brokers.cluster()
        if what == "topics":
            return [Candidate(topic) for topic in cluster.topics()]
        return [Candidate(one.group, (one.state or "").lower()) for one in listed_groups(cluster)]
    except (SeglogError, OptionError, OSError):
        return []
