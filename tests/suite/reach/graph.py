"""What a test can use, by what texts say: the source of knowledge where nothing was recorded.

A node is a definition at the top of a file. Using it leads to what it names: other definitions of the file, names that
the file imports, imports inside it, modules that its strings name (`-m` arguments, tables of lazy imports, programs as
text). A module that is imported leads to what its level executes, and to what a decorator may have registered. Whoever
takes a module as an object, or runs it as a program, may use all of it. Above a test lie conftest.py files: of these
the level is executed, and those fixtures are used that the test's file asks for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import takewhile
from pathlib import PurePosixPath

from tests.suite.reach.facts import OWN, SOURCE, Facts, Import

CONFTEST = "conftest.py"

ROOTS = ("operator/", "trainer/", "")
"""Folders in which top-level packages lie, as `pythonpath` of the tests says."""

LEVEL, ALL = "", "*"
"""Instead of the name of a definition: what an import of the file executes; everything in the file."""

_PACKAGE = "__init__.py"
_PRODUCT = ("operator/", "trainer/")

Node = tuple[str, str]  # path, name of a definition


class Graph:
    """What files name each other. `facts` of all Python files by path, `files`: all paths of the repository, `removed`:
    paths of Python files that a change has removed. Whoever still imports one of these reaches it, and fails."""

    def __init__(self, facts: Mapping[str, Facts], files: Iterable[str], removed: Iterable[str] = ()) -> None:
        gone = [path for path in removed if path not in facts]
        self.facts = {**facts, **{path: Facts() for path in gone}}
        self.files = sorted({*files, *facts})
        self.modules = {**_modules(gone), **_modules(facts)}  # A package may have taken the place of a module.
        self._edges: dict[Node, tuple[Node, ...]] = {}
        self._nodes: dict[str, frozenset[Node]] = {}
        self._closures: dict[str, frozenset[str]] = {}

    def closure(self, path: str) -> frozenset[str]:
        """Return all Python files that using `path` can reach, itself and the conftest.py files above it included."""
        if path not in self._closures:
            self._closures[path] = frozenset(file for file, _ in self.nodes(path))
        return self._closures[path]

    def reaches(self, path: str, file: str, functions: Iterable[str] | None = None) -> bool:
        """Tell whether using `path` can reach one of the functions of `file`, by qualified name; None: the file."""
        if functions is None:
            return file in self.closure(path)
        known = self.facts[file].definitions if file in self.facts else {}
        tops = {function.partition(".")[0] for function in functions}
        nodes = self.nodes(path)
        tops = {top if top in known and not _is_dunder(top) else LEVEL for top in tops}  # Python itself may call those
        return (file, ALL) in nodes or any((file, top) in nodes for top in tops)

    def nodes(self, path: str) -> frozenset[Node]:
        """Return all that using `path` can reach."""
        if path not in self._nodes:
            left = [(path, ALL), *self._of_conftests(path)] if path in self.facts else []
            seen = set(left)
            while left:
                for node in self._next(left.pop()):
                    if node not in seen:
                        seen.add(node)
                        left.append(node)
            self._nodes[path] = frozenset(seen)
        return self._nodes[path]

    def _of_conftests(self, path: str) -> list[Node]:
        asked = set(self.facts[path].requests)
        found: list[Node] = []
        for conftest in self.conftests(path):
            facts = self.facts[conftest]
            found.append((conftest, LEVEL))
            for name, definition in facts.definitions.items():
                if definition.always or name in asked:
                    asked.update(definition.requests)
            for name in asked | {name for name, definition in facts.definitions.items() if definition.always}:
                found += self._resolve(conftest, name)
        return found

    def importers(self, path: str) -> list[str]:
        """Return the files that import `path` themselves."""
        found = []
        for file, facts in self.facts.items():
            targets = (node for imported in facts.imports for node in self._imported(file, imported))
            if file != path and any(to == path for to, _ in targets):
                found.append(file)
        return found

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

    def _next(self, node: Node) -> tuple[Node, ...]:
        if node not in self._edges:
            self._edges[node] = tuple(self._compute(*node))
        return self._edges[node]

    def _compute(self, path: str, name: str) -> Iterator[Node]:
        whole = self.facts[path]
        if name == ALL:
            yield from ((path, definition) for definition in whole.definitions)
            rest = whole.definitions.get(LEVEL, whole)
            for used in [*rest.loaded, *_fixtures_of(path, whole)]:
                yield from self._resolve(path, used)
        if name == LEVEL:
            for imported in whole.at_import:
                yield from self._imported(path, imported)
            for used in whole.at_level:
                yield from self._resolve(path, used)
            yield from ((path, other) for other, definition in whole.definitions.items() if definition.always)
        if name not in whole.definitions:
            return
        facts = whole.definitions[name]
        if name != LEVEL:
            yield path, LEVEL
            for used in [*facts.loaded, *_fixtures_of(path, facts)]:
                yield from self._resolve(path, used)
        for imported in facts.in_functions:
            yield from self._imported(path, imported)
            for bound in imported.bound:
                yield from self._meant(path, imported, bound, "")
        yield from self._of_strings(path, facts)

    def _of_strings(self, path: str, facts: Facts) -> Iterator[Node]:
        for named in facts.named:
            yield from self._module_or_attribute(named)
        for prefix in facts.prefixes:
            package = f"{self._package(path)}{prefix.removeprefix(OWN)}" if prefix.startswith(OWN) else prefix
            yield from ((file, ALL) for module, file in self.modules.items() if module.startswith(f"{package}."))
        for _, name in facts.files:
            if name.endswith(SOURCE) and "*" not in name and not is_test_file(name):  # pytest alone runs tests
                yield from ((file, ALL) for file in self._scripts(name, path) if file != path)
            # Of a folder that is no package and lies beside the file, modules are found once it is on the path.
            yield from ((file, ALL) for file in self._by_folder.get(str(PurePosixPath(path).parent / name), ()))

    def _resolve(self, path: str, used: str, seen: frozenset[tuple[str, str]] = frozenset()) -> Iterator[Node]:
        """What `name`, or `name.attribute`, means in a file. A name of Python itself means nothing here."""
        facts, (name, _, attribute) = self.facts[path], used.partition(".")
        if (path, used) in seen:
            return
        # A file that tells others its own path or name may be started as a program.
        if name in ("globals", "__file__", "__name__") or name in facts.others:
            yield path, ALL
        if name in facts.definitions and name:
            yield path, name
        for imported in facts.at_import:
            if name in imported.bound or imported.names == ("*",):
                yield from self._meant(path, imported, name, attribute, seen | {(path, used)})

    def _meant(
        self, path: str, imported: Import, bound: str, attribute: str, seen: frozenset[tuple[str, str]] = frozenset()
    ) -> Iterator[Node]:
        """What a name that an import gives means, with an attribute behind it or without."""
        module = self._absolute(path, imported)
        if imported.bound == (ALL,):
            yield from self._module(path, module, ALL)
        elif not imported.names:
            yield from self._attribute(path, module, attribute if module == bound else "", seen)
            if module != bound and module.partition(".")[0] == bound and not _is_dunder(attribute):
                parts = module.split(".")  # the name of the first package is bound, and leads to all
                for count in range(1, len(parts)):
                    yield from self._module(path, ".".join(parts[:count]), ALL)
        elif imported.names == (ALL,):
            yield from self._attribute(path, module, bound, seen)
        else:
            name, package = imported.names[imported.bound.index(bound)], self._file(path, module)
            inner = f"{module}.{name}" in self.modules
            if inner:
                yield from self._attribute(path, f"{module}.{name}", attribute, seen)
            if not inner or (
                package is not None and name in self.facts[package].definitions
            ):  # or a module of its name
                yield from self._attribute(path, module, name, seen)

    def _attribute(
        self, path: str, module: str, attribute: str, seen: frozenset[tuple[str, str]] = frozenset()
    ) -> Iterator[Node]:
        """What an attribute of a module means; without one, all of the module: it goes somewhere as an object."""
        file = self._file(path, module)
        if file is None:
            return
        if not attribute or (attribute not in self.facts[file].definitions and not _is_dunder(attribute)):
            found = [*self._resolve(file, attribute, seen)] if attribute else []
            for imported in self._given_later(file, attribute):
                found += [(file, LEVEL), *self._meant(file, imported, attribute, "", seen)]
            yield from found or [(file, ALL)]  # of a name that isn't there a function of the module may know
        elif not _is_dunder(attribute):
            yield file, attribute
        elif attribute == "__file__" and PurePosixPath(file).name != _PACKAGE:
            yield file, ALL  # it may be started as a program

    def _absolute(self, path: str, imported: Import) -> str:
        if not imported.level:
            return imported.module
        above = self._package(path, imported.level)
        return f"{above}.{imported.module}" if imported.module else above

    def _package(self, path: str, level: int = 1) -> str:
        """The name of the package in which a file lies, or of one above."""
        folder = PurePosixPath(path).parents[level - 1]
        known = (module for module, file in self.modules.items() if file == f"{folder}/{_PACKAGE}")
        return next(known, str(folder).replace("/", "."))

    def _given_later(self, file: str, name: str) -> list[Import]:
        """The imports by which a package's `__getattr__` gives a name; its imports for type checkers tell them."""
        facts = self.facts[file]
        return [i for i in facts.for_types if name in i.bound] if "__getattr__" in facts.definitions else []

    def _imported(self, path: str, imported: Import) -> Iterator[Node]:
        """The modules of which an import executes the level."""
        module = self._absolute(path, imported)
        yield from self._module(path, module, LEVEL)
        for name in imported.names:
            if f"{module}.{name}" in self.modules:
                yield from self._module(path, f"{module}.{name}", LEVEL)
            elif (file := self._file(path, module)) is not None:
                for later in self._given_later(file, name):
                    yield from self._imported(file, later)

    def _module(self, path: str, module: str, name: str) -> Iterator[Node]:
        """A node of the module, and the levels of the packages that are imported on the way to it."""
        file = self._file(path, module)
        if file is not None:
            yield file, name
        parts = module.split(".")
        for count in range(1, len(parts)):
            package = self.modules.get(".".join(parts[:count]))
            if package is not None:
                yield package, LEVEL

    def _file(self, path: str, module: str) -> str | None:
        if module in self.modules:
            return self.modules[module]
        beside = str(PurePosixPath(path).with_name(f"{module}{SOURCE}"))  # a script finds what lies beside it
        return beside if "." not in module and beside in self.facts else None

    def _module_or_attribute(self, named: str) -> Iterator[Node]:
        """What a string names: a module, which may be run, or an attribute of one."""
        parts = named.split(".")
        for count in range(len(parts), 0, -1):
            module = ".".join(parts[:count])
            if module in self.modules:
                if count == 1 and len(parts) > 1 and parts[1] not in self._lazy(module):
                    return  # some name that begins as ours do, such as one of a label or a logger
                yield from self._module("", module, ALL)
                if f"{module}.__main__" in self.modules:
                    yield self.modules[f"{module}.__main__"], ALL
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
        return {*facts.requests, *facts.loaded, *facts.definitions}

    @cached_property
    def _by_folder(self) -> dict[str, list[str]]:
        """The modules of each folder that is no package."""
        found: dict[str, list[str]] = defaultdict(list)
        for file in self.facts:
            folder = str(PurePosixPath(file).parent)
            if f"{folder}/{_PACKAGE}" not in self.facts and not is_test_file(file):
                found[folder].append(file)
        return dict(found)

    @cached_property
    def _by_name(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = defaultdict(list)
        for file in self.facts:
            found[PurePosixPath(file).name].append(file)
        return dict(found)


def is_test_file(path: str) -> bool:
    """Return True for a file from which pytest collects tests."""
    return PurePosixPath(path).match("test_*.py")


def _fixtures_of(path: str, facts: Facts) -> list[str]:
    """Return names that may be those of fixtures."""
    return facts.requests if path.startswith("tests/") else []


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
