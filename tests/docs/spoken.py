"""Whether a command that a page names can be given at all: its program, its verb, its options and its files exist.

Nothing is run here. Programs of others (kubectl, helm, pip) are asked for no more than the files that they are given.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from tests.docs.blocks import ROOT
from trainmaster_operator.cli.argument_parser import parser

_OURS = ("operator", "trainer", "benchmarks", "tests/suite", "e2e", "charts", "claims", "docs/generate", "simulation")
_UNCHECKED = (
    *(".", "cd", "docker", "export", "for", "git", "kind", "python3", "read", "torchrun", "uv"),
    *("aws", "az", "eksctl", "gcloud"),  # of clouds
    *("chmod", "chown", "mkdir", "nvidia-ctk", "systemctl"),  # of nodes and file servers
)
_WRITTEN = (
    "storage.yaml",
    "data-copy.yaml",
    "owner.yaml",
    "gpu-first.yaml",
    "values-images.yaml",
    "/var/lib/trainmaster-e2e/values.yaml",
    "output.yaml",
)
"""Files that a command of the same page writes, or that it tells people to write."""
_FILES = ("-f", "--filename", "--values", "--from-file", "--constraint")

_PATH = re.compile(
    r"(?:benchmarks|charts|claims|docker|docs|e2e|examples|manifests|operator|simulation|tests|trainer)/\S*$"
)


def problems(words: Sequence[str]) -> Iterator[str]:
    """Yield why these words of a shell can't be a command, each as the end of a sentence."""
    words = [*_without_the_shells_own(words)]
    program, arguments = words[0].removeprefix(".venv/bin/"), words[1:]
    if program == "trainmaster":
        yield from _of_parser(parser(), arguments)
    elif program == "make":
        yield from _of_make(arguments)
    elif program == "python":
        yield from _of_python(arguments)
    elif program in ("kubectl", "helm"):
        yield from _of_files(arguments)
    elif program in _UNCHECKED or program.endswith("/bin/pip"):
        return
    else:
        yield f"`{program}` is no program that tests/docs/spoken.py knows how to check"


def problems_of_a_mention(span: str) -> Iterator[str]:
    """Yield what is wrong with a piece of code in a sentence, which may be a part of a command."""
    words = span.split()
    options = [word.partition("=")[0].strip("[],") for word in words if word.startswith("--")]
    if words[0] == "trainmaster" and len(words) > 1 and re.fullmatch(r"[a-z]+", words[1]):
        verbs = _verbs()
        if words[1] not in verbs:
            yield f"trainmaster has no command `{words[1]}`"
        else:
            known = verbs[words[1]]._option_string_actions
            yield from (f"`trainmaster {words[1]}` has no option {name}" for name in options if name not in known)
    elif words[0] == "make":
        yield from _of_make(words[1:])
    elif words[0] == "python":
        yield from _of_python(words[1:])
    elif words[0] in ("kubectl", "helm", "-f"):
        yield from _of_files(words)
    elif _PATH.match(span) and not any(ROOT.glob(re.sub(r"\{[^}]*\}|…", "*", span))):
        yield f"there is no {span}"
    elif words[0].startswith("--"):
        yield from (f"no program of ours has an option {name}" for name in options if name not in _all_options())


def _without_the_shells_own(words: Sequence[str]) -> Iterator[str]:
    """Leave out variables before the program, and where its output goes."""
    left = itertools.dropwhile(lambda word: re.fullmatch(r"[A-Z_]+=\S*", word), words)
    for word in left:
        if word == ">":
            next(left, None)
        else:
            yield word


def _of_parser(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> Iterator[str]:
    """Why the real parser refuses these arguments."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            parser.parse_args(arguments)
    except SystemExit as stop:
        if stop.code:
            yield said.getvalue().splitlines()[-1]


@cache
def _verbs() -> dict[str, argparse.ArgumentParser]:
    (commands,) = [action for action in parser()._actions if isinstance(action, argparse._SubParsersAction)]
    return {name: verb for name, verb in commands.choices.items() if isinstance(verb, argparse.ArgumentParser)}


def _of_make(arguments: Sequence[str]) -> Iterator[str]:
    targets, variables = _makefile()
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if equals and name not in variables:
            yield f"the Makefile has no variable {name}"
        if not equals and name not in targets:
            yield f"the Makefile has no target {name}"


@cache
def _makefile() -> tuple[frozenset[str], frozenset[str]]:
    """(targets, variables) of the Makefile."""
    text = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^([a-z][a-z0-9-]*):(?!=)", text, re.MULTILINE)
    return frozenset(targets), frozenset(re.findall(r"\$\(([A-Z_]+)\)", text))


def _of_python(arguments: Sequence[str]) -> Iterator[str]:
    if not arguments or arguments[0] == "-c" or arguments == ["-m"]:
        return
    if arguments[0] != "-m":
        if not (ROOT / arguments[0]).is_file():
            yield f"there is no file {arguments[0]}"
        return
    module, *given = arguments[1:]
    if module == "pytest":
        yield from (f"there is no {path}" for path in given if "/" in path and not (ROOT / path).exists())
        return
    source = _source(module)
    if source is None:
        yield f"there is no module {module}"
        return
    text = source.read_text()
    options = [word.partition("=")[0] for word in given if word.startswith("--")]
    yield from (f"{module} has no option {name}" for name in options if f'"{name}"' not in text and name != "--help")
    yield from _of_subcommand(module, given)


def _of_subcommand(module: str, given: Sequence[str]) -> Iterator[str]:
    """Ask the real parser where a module has one: options of a verb may stand behind it only, or before it only."""
    if module != "simulation" or not given:
        return
    from simulation import __main__ as simulation

    yield from _of_parser(simulation._parser(), given)


@cache
def _source(module: str) -> Path | None:
    """The file that `python -m` runs."""
    parts = module.split(".")
    for root in (ROOT, ROOT / "operator", ROOT / "trainer"):
        for file in (root.joinpath(*parts).with_suffix(".py"), root.joinpath(*parts, "__main__.py")):
            if file.is_file():
                return file
    return None


def _of_files(arguments: Sequence[str]) -> Iterator[str]:
    for before, word in zip(["", *arguments], arguments, strict=False):
        option, equals, value = word.partition("=")
        path = value if equals and option in _FILES else word if before in _FILES or word.startswith("charts/") else ""
        if path and path not in _WRITTEN and not (ROOT / path).exists():
            yield f"there is no {path}"


@cache
def _all_options() -> frozenset[str]:
    """Every option that a program of ours takes."""
    files = [file for folder in _OURS for file in (ROOT / folder).rglob("*.py")]
    texts = [text for text in (file.read_text() for file in files) if "add_argument" in text]
    names = {name for text in texts for name in re.findall(r"[\"'](--[a-z][a-z-]*)[\"']", text)}
    return frozenset(names | {"--help"})
