"""A job's YAML file with the line numbers of its fields, so that a problem can be shown as file:line.

It is read as Kubernetes' tools read it: `3e-4` is a number and a date is text (PyYAML, which follows YAML 1.1 exactly,
does the opposite), and a key that appears twice is an error.
"""

from __future__ import annotations

import copy
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import yaml

from trainmaster_operator.api.validation import job_validation
from trainmaster_operator.cli.refusal import Refusal, why

SIZE_LIMIT = 1024 * 1024  # About the maximum size that an API server accepts.
VALUES_LIMIT = 20_000
"""Maximum number of fields and list entries of a document. An alias counts each time it is used: a few lines with
nested aliases can stand for more values than fit into memory."""

_FLOAT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_COLLECTIONS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")


class _TooLarge(Exception):
    """The aliases of a document stand for more than a job can have."""


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: ClassVar[dict[str, list[tuple[str, re.Pattern[str]]]]] = {  # type: ignore[misc]
        first: [(tag, expression) for tag, expression in resolvers if not tag.endswith((":timestamp", ":float"))]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Resolve merge keys (`<<`). Raise _TooLarge as soon as there are more fields than a document may have."""
        fields = 0
        for key, value in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                for part in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    if isinstance(part, yaml.MappingNode):
                        self.flatten_mapping(part)
                        fields += len(part.value)
                    if fields > VALUES_LIMIT:
                        raise _TooLarge
        super().flatten_mapping(node)


# This resolver comes after that of integers.
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(f"^(?:{_FLOAT.pattern})$"), list("-+0123456789."))


@dataclass(frozen=True)
class Document:
    """A YAML document as JSON values. `lines`: the line number (from 1) of each field and list entry. `text`: what was
    read, because a file such as /dev/stdin can be read only once."""

    file: Path
    value: Any
    lines: dict[job_validation.Path, int]
    text: str = ""

    def line(self, path: job_validation.Path) -> int:
        """Return the line of a field, or of the nearest field above it if it does not exist."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def describe_problem(self, problem: job_validation.Problem) -> str:
        """Return "FILE:LINE: PROBLEM"."""
        return f"{self.file}:{self.line(problem.path)}: {problem}"


def load(file: Path) -> Document:
    """Return the document of a file. Raise Refusal if the file cannot be read or is not one YAML document."""
    loader = None
    try:
        if file.stat().st_size > SIZE_LIMIT:
            raise Refusal(f"{file}: has {file.stat().st_size} bytes; a job has at most {SIZE_LIMIT}")
        if file.suffix == ".py" and file.is_file():
            words = shlex.join(["trainmaster", "init", "job.yaml", "--script", str(file)])
            raise Refusal(f"{file}: is a Python script; a job in YAML is expected; `{words}` writes one that runs it")
        text = file.read_text(encoding="utf-8")
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            raise Refusal(f"{file}: is empty; a job in YAML is expected")
        reader = _Reader(loader, file)
        return Document(file, reader.value(node, (), []), reader.lines, text)
    except _TooLarge:
        raise Refusal(
            f"{file}: its aliases stand for more than {VALUES_LIMIT} values or {SIZE_LIMIT} "
            f"characters, which is more than a job can have"
        ) from None
    except OSError as error:
        raise Refusal(f"{file}: {_why(error)}") from None
    except UnicodeDecodeError:
        raise Refusal(f"{file}: isn't text in UTF-8; a job in YAML is expected") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{file}:{mark.line + 1}" if mark else str(file)
        if error.context == "expected a single document in the stream":
            raise Refusal(f"{where}: a second document begins here; one job per file is expected") from None
        raise Refusal(f"{where}: isn't YAML: {_sentence(error)}") from None
    except yaml.YAMLError as error:
        raise Refusal(f"{file}: isn't YAML: {error}".replace("\n", " ")) from None
    except RecursionError:
        raise Refusal(f"{file}: is nested too deeply to be a job") from None
    finally:
        if loader is not None:
            loader.dispose()


class _Dumper(yaml.SafeDumper):
    """Quotes text that Kubernetes' tools would read as a number."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", text, style='"' if _FLOAT.fullmatch(text) else None)

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_representer(str, _Dumper.represent_text)


def dump(value: Any) -> str:
    """Return JSON values as YAML that `load` reads as the same values."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)


class _Reader:
    """Converts the nodes of a document to JSON values, and records their lines."""

    def __init__(self, loader: _Loader, file: Path) -> None:
        self.lines: dict[job_validation.Path, int] = {}
        self._loader, self._file = loader, file
        self._values = self._characters = 0
        self._merged: set[int] = set()  # Maps whose merge keys are resolved already.

    def value(self, node: yaml.Node, path: job_validation.Path, above: list[yaml.Node]) -> Any:
        """Return the JSON value of a node. Raise Refusal for values that JSON does not have, _TooLarge for a
        document that is too large."""
        here = f"{self._file}:{node.start_mark.line + 1}"
        self.lines.setdefault(path, node.start_mark.line + 1)
        if any(node is other for other in above):
            raise Refusal(f"{here}: an alias that contains itself")
        if not isinstance(node, yaml.ScalarNode) and node.tag not in _COLLECTIONS:
            raise Refusal(f"{here}: the tag {node.tag} isn't known here; plain YAML is expected")
        self._count(node)
        above = [*above, node]
        if isinstance(node, yaml.SequenceNode):
            return [self.value(child, (*path, i), above) for i, child in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode):
            return self._map(node, path, above)
        return self._scalar(node, here)

    def _count(self, node: yaml.Node) -> None:
        self._values += 1
        self._characters += len(node.value) if isinstance(node, yaml.ScalarNode) else 0
        if self._values > VALUES_LIMIT or self._characters > SIZE_LIMIT:
            raise _TooLarge

    def _map(self, node: yaml.MappingNode, path: job_validation.Path, above: list[yaml.Node]) -> dict[str, Any]:
        if id(node) not in self._merged:  # An alias may lead here again.
            self._merged.add(id(node))
            self._refuse_twice(node, path)
            self._loader.flatten_mapping(node)  # The map's own fields come after merged ones, so they win.
        result: dict[str, Any] = {}
        for key_node, child in node.value:
            key = key_node.value
            line = key_node.start_mark.line + 1
            if not isinstance(key, str):
                raise Refusal(f"{self._file}:{line}: a field's name is expected, not a list or a map")
            self._characters += len(key)
            self.lines[(*path, key)] = line
            result[key] = self.value(child, (*path, key), above)
        return result

    def _refuse_twice(self, node: yaml.MappingNode, path: job_validation.Path) -> None:
        """Raise Refusal for a field that a map contains twice."""
        names: set[str] = set()
        for name_node, _ in node.value:
            name, line = str(name_node.value), name_node.start_mark.line + 1
            if name in names:
                raise Refusal(f"{self._file}:{line}: {job_validation.dotted((*path, name))} is given twice")
            names.add(name)

    def _scalar(self, node: yaml.Node, here: str) -> Any:
        try:
            value = self._loader.construct_object(node)
        except (ValueError, yaml.YAMLError):
            raise Refusal(f"{here}: {node.value!r} can't be read as {node.tag.rpartition(':')[2]}") from None
        if value is None or isinstance(value, (str, int, float)):
            return value
        raise Refusal(f"{here}: {node.value!r} is neither text nor a number; put it in quotes")


def _sentence(error: yaml.MarkedYAMLError) -> str:
    """Return the parser's message on one line, with advice for the most frequent cause."""
    words = ", ".join(part for part in (error.context, error.problem) if part)
    if "cannot start any token" in words and "\\t" in words:
        return f"{words}: indent with spaces, not with tabs"
    return words.replace("\n", " ")


def _why(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "doesn't exist"
    if isinstance(error, IsADirectoryError):
        return "is a folder; a job in YAML is expected"
    return why(error)


def refuse(document: Document, problems: Iterable[job_validation.Problem]) -> None:
    """Raise Refusal with the problems, ordered by line, each once. Return if there are none."""
    told = sorted(dict.fromkeys(problems), key=lambda problem: document.line(problem.path))
    if told:
        raise Refusal(*[document.describe_problem(problem) for problem in told])


def in_namespace(document: Document, default: str, asked: str | None) -> dict[str, Any]:
    """Return the job as it would be created. `asked`: the namespace of the command line. Raise Refusal if the file
    names another one."""
    job: dict[str, Any] = copy.deepcopy(document.value)
    job.pop("status", None)
    meta = job["metadata"]
    if asked is not None and meta.get("namespace", asked) != asked:
        raise Refusal(f"{document.file}: metadata.namespace is {meta['namespace']}, but the command line says {asked}")
    meta.setdefault("namespace", asked or default)
    return job
