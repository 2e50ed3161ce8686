"""What a rank tells of its imports, with small packages in place of libraries."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from trainmaster.rank import import_log
from trainmaster.rank.import_log import ImportLog


class Told:
    """A log and all that it has told."""

    def __init__(self) -> None:
        self.imports: list[tuple[str, str]] = []
        self.loaded: list[str] = []
        self.busy: list[bool] = []
        self.log = ImportLog(self.imports.extend, self.loaded.append, self.busy.append)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[], Told]]:
    """Begin a log of this process, to which a folder `site` of packages is an installed one. It is begun in the test
    itself, since pytest changes a variable before that."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.setattr(import_log, "_ROOTS", (str(site.resolve()) + os.sep,))
    import_log._is_installed.cache_clear()
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    environment = dict(os.environ)
    ends: list[Callable[[], None]] = []

    def begin() -> Told:
        told = Told()
        ends.append(import_log.watch(told.log))
        return told

    yield begin
    for end in ends:
        end()
    import_log._is_installed.cache_clear()
    os.environ.clear()
    os.environ.update(environment)
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def package(tmp_path: Path, watch: Callable[[], Told]) -> Callable[..., None]:
    """Write an installed package: the source of each of its files."""

    def write(name: str, init: str = "", **modules: str) -> None:
        folder = tmp_path / "site" / name
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(init)
        for module, source in modules.items():
            (folder / f"{module}.py").write_text(source)
        importlib.invalidate_caches()

    return write


def test_a_package_is_told_before_the_submodule_for_which_it_was_imported(
    watch: Callable[[], Told], package: Callable[..., None]
) -> None:
    told = watch()
    package("outer_a", "import inner_a", part="")
    package("inner_a")
    importlib.import_module("outer_a.part")
    assert told.imports == [("outer_a", ""), ("inner_a", "outer_a"), ("outer_a.part", "")]
    assert told.loaded == ["inner_a", "outer_a", "outer_a.part"]
    assert told.busy == [True, False, True, False]


def test_imports_of_the_users_own_modules_are_told_without_these(
    watch: Callable[[], Told], package: Callable[..., None], tmp_path: Path
) -> None:
    told = watch()
    package("library_b")
    (tmp_path / "mine_b.py").write_text("import library_b\n")
    importlib.import_module("mine_b")
    assert told.imports == [("library_b", "")]


def test_a_variable_that_an_import_sets_spoils_nothing(watch: Callable[[], Told], package: Callable[..., None]) -> None:
    os.environ["GONE_BY_C"] = "there"
    told = watch()
    package("setting_c", "import os\nos.environ['SET_BY_C'] = 'yes'\nos.environ.pop('GONE_BY_C', None)")
    package("after_c")
    importlib.import_module("setting_c")
    importlib.import_module("after_c")
    assert told.imports == [("setting_c", ""), ("after_c", "")]
    assert told.log.variables == {"SET_BY_C": "yes", "GONE_BY_C": None}


@pytest.mark.parametrize("where", ["script", "module"])
def test_what_is_imported_after_the_script_changed_a_variable_is_not_told(
    watch: Callable[[], Told], package: Callable[..., None], tmp_path: Path, where: str
) -> None:
    told = watch()
    package("before_d")
    package("after_d")
    importlib.import_module("before_d")
    if where == "script":
        os.environ["SET_BY_D"] = "yes"
    else:
        (tmp_path / "mine_d.py").write_text("import os\nos.environ['SET_BY_D'] = 'yes'\n")
        importlib.import_module("mine_d")
    importlib.import_module("after_d")
    assert told.imports == [("before_d", "")]
    assert told.log.variables == {}


def test_a_variable_that_is_read_later_than_at_imports_spoils_nothing(
    watch: Callable[[], Told], package: Callable[..., None]
) -> None:
    told = watch()
    package("after_h")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    importlib.import_module("after_h")
    assert told.imports == [("after_h", "")]


@pytest.mark.parametrize(
    ("variable", "forkable"),
    [("HF_HOME", True), ("CUDA_VISIBLE_DEVICES", True), ("TORCHDYNAMO_DISABLE", False), ("OWN", False)],
)
def test_a_script_is_not_forkable_when_it_changes_what_torch_may_read_before_torch(
    watch: Callable[[], Told], variable: str, forkable: bool
) -> None:
    told = watch()
    os.environ[variable] = "changed"
    spec = ModuleSpec("torch", None, origin="/elsewhere/torch/__init__.py")
    told.log.begun(spec)
    told.log.ended(spec, failed=False)
    assert told.log.forkable == forkable


def test_an_import_that_fails_is_not_told_but_what_it_brought_along_is(
    watch: Callable[[], Told], package: Callable[..., None]
) -> None:
    told = watch()
    package("failing_e", "import whole_e\nraise ImportError('no device')")
    package("whole_e")
    with pytest.raises(ImportError):
        importlib.import_module("failing_e")
    assert told.imports == [("whole_e", "")]


def test_the_traceback_of_an_import_that_fails_shows_nothing_of_the_log(
    watch: Callable[[], Told], package: Callable[..., None]
) -> None:
    watch()
    package("raising_f", "1 / 0")
    with pytest.raises(ZeroDivisionError) as error:
        exec("import raising_f", {})
    files = [frame.filename for frame in traceback.extract_tb(error.value.__traceback__)]
    assert files[1:] == ["<string>", str(Path(files[-1]))]
    assert files[-1].endswith("raising_f/__init__.py")


def test_packages_are_installed_in_every_such_folder_of_the_interpreter_but_those_of_pythonpath(
    tmp_path: Path,
) -> None:
    own, system, overlay, given, project = (
        str(tmp_path / name)
        for name in (
            "own/lib/python3/site-packages",
            "usr/lib/python3/dist-packages",
            "overlay/lib/python3/site-packages",
            "given/site-packages",
            "project",
        )
    )
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "given")
    path = [project, str(link / "site-packages"), "", own, system, overlay]
    found = import_log.package_folders(path, os.pathsep.join(["", given, project]))
    assert found == [own, system, overlay]


def test_a_package_of_another_environment_that_the_interpreter_leads_to_is_told(tmp_path: Path) -> None:
    """`uv run --with` makes such an environment: a `.pth` file in it adds the packages of the project's."""
    other = tmp_path / "other" / "site-packages"
    (other / "layered").mkdir(parents=True)
    (other / "layered" / "__init__.py").write_text("")
    code = (
        f"import site; site.addsitedir({str(other)!r})\n"
        "from importlib.util import find_spec\nfrom trainmaster.rank import import_log\n"
        "print(import_log.is_learnable(find_spec('layered')))\n"
    )
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert told.stdout == "True\n"


def test_imports_of_a_fork_are_not_told(watch: Callable[[], Told], package: Callable[..., None]) -> None:
    told = watch()
    package("forked_g")
    pid = os.fork()
    if pid == 0:
        importlib.import_module("forked_g")
        os._exit(len(told.imports) + len(told.busy))
    assert os.waitpid(pid, 0)[1] == 0
