"""`trainmaster completion`: scripts with which a shell completes the command line, made from the parser."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from trainmaster_operator.cli import command_table
from trainmaster_operator.cli.argument_parser import parser
from trainmaster_operator.cli.common_options import Completes, completed
from trainmaster_operator.cli.fault_injection import fault_kinds

Values = Completes | Sequence[str]
"""The values that a shell offers: a kind, or a list of words."""


@dataclass(frozen=True)
class Option:
    """An option of a command."""

    names: Sequence[str]
    values: Values | None  # None: the option takes no value.
    line: str


@dataclass(frozen=True)
class Command:
    """A command. `positions`: the values of its arguments without a name. `repeats`: the last of them can be
    repeated."""

    name: str
    line: str
    options: Sequence[Option]
    positions: Sequence[Values]
    repeats: bool


def completion(shell: str) -> int:
    """Print the script for a shell. Return 0."""
    sys.stdout.write(script(shell))
    return 0


def script(shell: str) -> str:
    """Return the script for bash, zsh or fish."""
    make: Callable[[Sequence[Command]], Iterator[str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell]
    return "\n".join(make(described())) + "\n"


def described() -> list[Command]:
    """Return all commands with their options, as the parser defines them."""
    (added,) = (action for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    lines = {name: line for group in command_table.GROUPS.values() for name, line in group.items()}
    return [_command(name, line, added.choices[name]) for name, line in lines.items()]


def _command(name: str, line: str, taken: argparse.ArgumentParser) -> Command:
    options: list[Option] = []
    positions: list[Values] = []
    repeats = False
    for action in taken._actions:
        if action.option_strings:
            values = None if action.nargs == 0 else completed(action)
            options.append(Option(action.option_strings, values, " ".join((action.help or "").split())))
        else:
            positions.append(completed(action))
            repeats = action.nargs in ("+", "*")
    return Command(name, line, options, positions, repeats)


# -- bash

_BASH_HEAD = """\
# Completion of trainmaster in bash: source <(trainmaster completion bash)
_trainmaster() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}
    local options="" valued="" repeats=0 position=0 kind="" i
    local -a positions=()
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        _trainmaster_words "@COMMANDS@ --help --version"
        return
    fi
    case ${COMP_WORDS[1]} in"""

_BASH_TAIL = """\
        *) return ;;
    esac
    for ((i = 2; i < COMP_CWORD; i++)); do
        case " $valued " in
            *" ${COMP_WORDS[i]} "*) ((i += 1)) ;;
            *) [[ ${COMP_WORDS[i]} == -* ]] || ((position += 1)) ;;
        esac
    done
    if ((position >= ${#positions[@]} && repeats)); then
        position=$((${#positions[@]} - 1))
    fi
    case " $valued " in
        *" $before "*) kind=$(_trainmaster_value "${COMP_WORDS[1]} $before") ;;
        *)
            if [[ $word == -* ]]; then
                kind="words $options"
            elif ((position < ${#positions[@]})); then
                kind=${positions[position]}
            fi
            ;;
    esac
    local IFS=$'\\n'
    case $kind in
        file) compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -f -- "$word")) ;;
        folder) compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -d -- "$word")) ;;
        run)
            compopt -o filenames 2>/dev/null
            COMPREPLY=($(compgen -d -- "$word"; cd runs 2>/dev/null && compgen -d -- "$word"))
            ;;
        fault) compopt -o nospace 2>/dev/null; _trainmaster_words "@FAULTS@" ;;
        words*) _trainmaster_words "${kind#words}" ;;
    esac
}

_trainmaster_words() {
    local IFS=$' \\n'
    COMPREPLY=($(compgen -W "$1" -- "${COMP_WORDS[COMP_CWORD]}"))
}

_trainmaster_value() {
    case $1 in"""


def _bash(listed: Sequence[Command]) -> Iterator[str]:
    yield _BASH_HEAD.replace("@COMMANDS@", " ".join(command.name for command in listed))
    for command in listed:
        names = [name for option in command.options for name in option.names]
        valued = [name for option in command.options if option.values is not None for name in option.names]
        yield f"        {command.name})"
        yield f'            options="{" ".join(names)}" valued="{" ".join(valued)}" repeats={int(command.repeats)}'
        yield f"            positions=({' '.join(_quoted(_bash_kind(values)) for values in command.positions)})"
        yield "            ;;"
    yield _BASH_TAIL.replace("@FAULTS@", " ".join(_faults()))
    for command in listed:
        for option in command.options:
            if option.values is not None and (kind := _bash_kind(option.values)) != "words ":
                patterns = "|".join(_quoted(f"{command.name} {name}") for name in option.names)
                yield f"        {patterns}) echo {_quoted(kind)} ;;"
    yield "    esac\n}\n\ncomplete -F _trainmaster trainmaster"


def _bash_kind(values: Values) -> str:
    return values.name.lower() if isinstance(values, Completes) else f"words {' '.join(values)}"


# -- zsh


def _zsh(listed: Sequence[Command]) -> Iterator[str]:
    yield "#compdef trainmaster"
    yield "# Completion of trainmaster in zsh: trainmaster completion zsh > DIR/_trainmaster, with DIR in fpath"
    yield "_trainmaster() {"
    yield "    local -a commands=("
    yield from (f"        {_quoted(f'{command.name}:{command.line}')}" for command in listed)
    yield "    )"
    yield "    if ((CURRENT == 2)); then"
    yield "        _describe command commands"
    yield "        return"
    yield "    fi"
    yield "    shift words"
    yield "    ((CURRENT -= 1))"
    yield "    case $words[1] in"
    for command in listed:
        yield f"        {command.name})"
        yield "            _arguments \\"
        specs = [_zsh_option(option, name) for option in command.options for name in option.names]
        last = len(command.positions) - 1
        for at, values in enumerate(command.positions):
            where = "*" if at == last and command.repeats else str(at + 1)
            specs.append(_quoted(f"{where}:argument:{_zsh_kind(values)}"))
        yield " \\\n".join(f"                {spec}" for spec in specs)
        yield "            ;;"
    yield "    esac"
    yield "}"
    yield "if [[ ${zsh_eval_context[-1]} == loadautofunc ]]; then"
    yield '    _trainmaster "$@"'
    yield "else"
    yield "    compdef _trainmaster trainmaster"
    yield "fi"


def _zsh_option(option: Option, name: str) -> str:
    line = option.line
    for special in "\\[]:":
        line = line.replace(special, f"\\{special}")
    value = f":value:{_zsh_kind(option.values)}" if option.values is not None else ""
    return _quoted(f"*{name}[{line}]{value}")


def _zsh_kind(values: Values) -> str:
    if not isinstance(values, Completes):
        return f"({' '.join(values)})" if values else " "
    return {
        Completes.FILE: "_files",
        Completes.FOLDER: "_files -/",
        Completes.RUN: '{_files -/; _files -/ -W "$PWD/runs"}',
        Completes.FAULT: f"({' '.join(fault.replace(':', chr(92) + ':') for fault in _faults())})",
    }[values]


# -- fish


def _fish(listed: Sequence[Command]) -> Iterator[str]:
    yield "# Completion of trainmaster in fish: trainmaster completion fish | source"
    yield "complete -c trainmaster -f"
    yield "complete -c trainmaster -n __fish_use_subcommand -l help -d 'show the commands'"
    yield "complete -c trainmaster -n __fish_use_subcommand -l version -d 'print the version'"
    for command in listed:
        yield f"complete -c trainmaster -n __fish_use_subcommand -a {command.name} -d {_quoted_for_fish(command.line)}"
    for command in listed:
        beginning = f"complete -c trainmaster -n '__fish_seen_subcommand_from {command.name}'"
        for option in command.options:
            flags = [f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names]
            value = f" -r {_fish_kind(option.values)}".rstrip() if option.values is not None else ""
            yield f"{beginning} {' '.join(flags)}{value} -d {_quoted_for_fish(option.line)}"
        offered = [kind for values in command.positions if (kind := _fish_kind(values))]
        yield from (f"{beginning} {kind}" for kind in dict.fromkeys(offered))


def _fish_kind(values: Values) -> str:
    if not isinstance(values, Completes):
        return f"-a {_quoted_for_fish(' '.join(values))}" if values else ""
    return {
        Completes.FILE: "-F",
        Completes.FOLDER: "-a '(__fish_complete_directories)'",
        Completes.RUN: "-a '(__fish_complete_directories; path basename runs/*/)'",
        Completes.FAULT: f"-a {_quoted_for_fish(' '.join(_faults()))}",
    }[values]


def _faults() -> list[str]:
    """Return the kinds of faults, each with the colon that precedes its keys."""
    return [f"{kind}:" for kind in fault_kinds.names()]


def _quoted(text: str) -> str:
    """Return a text as one word of bash or zsh."""
    return "'" + text.replace("'", "'\\''") + "'"


def _quoted_for_fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
