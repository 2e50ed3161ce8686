"""Which files a test can use, by what their texts say: the source of knowledge where nothing was recorded.

A file is reached in one of two ways. *Imported*: its module level is executed, as the `__init__` of a package is when
a module of the package is imported. *Used*: anything in it may be executed, so also the imports inside its functions
and the modules that its strings name (`-m` arguments, tables of lazy imports, programs as text). What an imported file
imports is used if its module level does anything with it, and otherwise imported. A conftest.py above a test is
imported; of its fixtures those are used that the test's file asks for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import takewhile
from pathlib import PurePosixPath

from tests.suite.reach.facts import SOURCE, Facts, Import

_PRODUCT = ("operator/", "trainer/")

CONFTEST = "conftest.py"

ROOTS = ("operator/", "trainer/", "")
"""Folders in which top-level packages lie, as `pythonpath` of the tests says."""

_Node = tuple[str, bool | str]  # path; True: used, False: imported, a name: this definition of a conftest.py is used


class Graph:
    """What files name each other. `facts` of all Python files by path, `files`: all paths of the repository."""

    def __init__(self, facts: Mapping[str, Facts], files: Iterable[str]) -> None:
        self.facts = facts
        self.files = sorted({*files, *facts})
        self.modules = _modules(facts)
        self._edges: dict[_Node, tuple[_Node, ...]] = {}
        self._closures: dict[str, frozenset[str]] = {}

    def closure(self, path: str) -> frozenset[str]:
        """Return all Python files that using `path` can reach, itself and the conftest.py files above it included."""
        if path not in self._closures:
            left = [(path, True), *self._of_conftests(path)]
            seen = set(left)
            while left:
                for node in self._next(left.pop()):
                    if node not in seen:
                        seen.add(node)
                        left.append(node)
            self._closures[path] = frozenset(file for file, _ in seen)
        return self._closures[path]

    def _of_conftests(self, path: str) -> list[_Node]:
        asked = set(self.facts[path].requests)
        found: list[_Node] = []
        for conftest in self.conftests(path):
            found.append((conftest, ""))
            for name, definition in self.facts[conftest].definitions.items():
                if definition.always or name in asked:
                    found.append((conftest, name))
                    asked.update(definition.requests)
            for imported in self.facts[conftest].at_import:
                if any(name in asked or name.startswith("pytest_") for name in imported.bound):
                    found += self._imported(conftest, imported, used=True)
        return found

    def importers(self, path: str) -> list[str]:
        """Return the files that import `path` themselves."""
        return [file for file in self.facts if file != path and any(to == path for to, _ in self._compute(file, True))]

    def conftests(self, path: str) -> list[str]:
        """Return the conftest.py files whose fixtures a test file has at hand."""
        parents = [str(folder / CONFTEST).removeprefix("./") for folder in PurePosixPath(path).parents]
        return [conftest for conftest in parents if conftest in self.facts and conftest != path]

    @cached_property
    def tests(self) -> list[str]:
        """Return the test files below tests/."""
        return [p for p in self.files if p.startswith("tests/") and is_test_file(p) and p in self.facts]

    def naming(self, path: str) -> list[tuple[str, int]]:
        """Return (file, line) of all places in Python files that name `path` or a folder of it; line 0: all of it.

        Folders of sources are on the path of every process that a test starts. So for a Python file a folder counts
        only below its top-level one, and whoever looks for Python files by a pattern is taken to find it.
        """
        source = path.endswith(SOURCE)
        found = []
        for file, facts in self.facts.items():
            if file == path:
                continue
            mentions = (m for m in facts.files if not source or "/" in m[1] or m[1].endswith(SOURCE))
            if not is_test_file(path):
                found += [(file, line) for line, named in mentions if names(named, path, file)]
            if source and facts.reads_sources and not file.startswith(_PRODUCT):
                found.append((file, 0))
        return found

    def _next(self, node: _Node) -> tuple[_Node, ...]:
        if node not in self._edges:
            self._edges[node] = tuple(self._compute(*node))
        return self._edges[node]

    def _compute(self, path: str, way: bool | str) -> Iterable[_Node]:
        whole = self.facts[path]
        if way is False:
            for imported in whole.at_import:
                yield from self._imported(path, imported, used=imported.called)
            return
        facts = whole if way is True else whole.definitions[way]
        if way is not True:
            yield from self._loaded(path, facts)
        else:
            for imported in whole.at_import:
                yield from self._imported(path, imported, used=True)
        for imported in facts.in_functions:
            yield from self._imported(path, imported, used=True)
        for named in facts.named:
            yield from self._module_or_attribute(named)
        for prefix in facts.prefixes:
            yield from ((file, True) for module, file in self.modules.items() if module.startswith(f"{prefix}."))
        for _, name in facts.files:
            if name.endswith(SOURCE) and "*" not in name and not is_test_file(name):  # pytest alone runs tests
                yield from ((file, True) for file in self._scripts(name, path) if file != path)

    def _loaded(self, conftest: str, definition: Facts) -> Iterable[_Node]:
        """What a definition of a conftest.py uses of the same file: imports, definitions, the fixtures that it asks."""
        asked = {*(name.partition(".")[0] for name in definition.loaded), *definition.requests}
        yield from ((conftest, name) for name in self.facts[conftest].definitions if name in asked)
        for imported in self.facts[conftest].at_import:
            yield from self._imported(conftest, imported, used=bool(asked.intersection(imported.bound)))

    def _imported(self, path: str, imported: Import, *, used: bool) -> Iterable[_Node]:
        module = imported.module
        if imported.level:
            package = PurePosixPath(path).parents[imported.level - 1]
            above = next((m for m, file in self.modules.items() if file == f"{package}/__init__.py"), None)
            above = above or str(package).replace("/", ".")
            module = f"{above}.{module}" if module else above
        if not imported.names:
            used = used and ("*" in imported.bound or any(map(self.facts[path].uses, imported.bound)))
            yield from self._module(path, module, used)
            if (
                module not in imported.bound and "*" not in imported.bound
            ):  # the name of the first package is bound, and leads to all
                parts = module.split(".")
                for count in range(1, len(parts)):
                    yield from self._module(path, ".".join(parts[:count]), used)
            return
        inner = [name for name in imported.names if f"{module}.{name}" in self.modules]
        for name in inner:
            yield from self._module(path, f"{module}.{name}", used)
        if len(inner) < len(imported.names):
            yield from self._module(path, module, used and not all(map(_is_dunder, imported.names)))

    def _module(self, path: str, module: str, used: bool) -> Iterable[_Node]:
        """The module itself, and the packages that are imported on the way to it."""
        parts = module.split(".")
        if module in self.modules:
            yield self.modules[module], used
        elif len(parts) == 1:  # a script finds what lies beside it
            beside = str(PurePosixPath(path).with_name(f"{module}{SOURCE}"))
            if beside in self.facts:
                yield beside, used
        for count in range(1, len(parts)):
            package = self.modules.get(".".join(parts[:count]))
            if package is not None:
                yield package, False

    def _module_or_attribute(self, named: str) -> Iterable[_Node]:
        parts = named.split(".")
        for count in range(len(parts), 0, -1):
            module = ".".join(parts[:count])
            if module in self.modules:
                if count == 1 and len(parts) > 1 and parts[1] not in self._lazy(module):
                    return  # some name that begins as ours do, such as one of a label or a logger
                yield from self._module("", module, True)
                if f"{module}.__main__" in self.modules:
                    yield self.modules[f"{module}.__main__"], True
                return

    def _scripts(self, name: str, by: str) -> list[str]:
        """Return the files that a path ending in .py can mean; many folders have an `__init__.py` of their own."""
        if _is_dunder(PurePosixPath(name).stem) and "/" not in name:
            beside = str(PurePosixPath(by).with_name(name))
            return [beside] if beside in self.facts else []
        return [file for file in self._by_name.get(PurePosixPath(name).name, []) if f"/{file}".endswith(f"/{name}")]

    def _lazy(self, package: str) -> set[str]:
        """Return the names that a package may give when it is asked for them."""
        facts = self.facts[self.modules[package]]
        return {*facts.requests, *facts.loaded}

    @cached_property
    def _by_name(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = defaultdict(list)
        for file in self.facts:
            found[PurePosixPath(file).name].append(file)
        return dict(found)


def is_test_file(path: str) -> bool:
    """Return True for a file from which pytest collects tests."""
    return PurePosixPath(path).match("test_*.py")


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _modules(files: Iterable[str]) -> dict[str, str]:
    """Return the path of every module's file by the module's dotted name."""
    found = {}
    for file in files:
        root = next(root for root in ROOTS if file.startswith(root))
        parts = file.removeprefix(root).removesuffix(SOURCE).split("/")
        if parts[-1] == "__init__":
            parts.pop()
        if parts and all(part.isidentifier() for part in parts):
            found[".".join(parts)] = file
    return found


def names(named: str, path: str, by: str) -> bool:
    """Return True if `named`, a path or a part of one that the file `by` holds, means `path` or a folder of it.

    The end of a path means every file whose path ends so. A folder is meant only by its path from the root of the
    repository, or from the folder of `by` or one above: whoever uses it from elsewhere imports it from there.
    """
    parts, wanted = [p for p in named.split("/") if p not in ("", ".", "..")], path.split("/")
    if all("*" in part for part in parts):
        return False  # a pattern such as *.md means files of a folder that is named elsewhere
    if len(parts) <= len(wanted) and _match(parts, wanted[-len(parts) :]):
        return True
    folder = list(takewhile(lambda part: "*" not in part, parts))
    own = by.split("/")[:-1]
    return bool(folder) and any(_match([*own[:depth], *folder], wanted[:-1]) for depth in range(len(own) + 1))


def _match(parts: list[str], wanted: list[str]) -> bool:
    return len(parts) <= len(wanted) and all(fnmatchcase(w, p) for p, w in zip(parts, wanted, strict=False))
