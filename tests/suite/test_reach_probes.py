"""What probes record, and that code with probes behaves as it does without."""

from __future__ import annotations

import asyncio
import builtins
import dis
import inspect
import linecache
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tests import tied
from tests.suite.reach import startup
from tests.suite.reach.blocks import read
from tests.suite.reach.interpreter import Interpreter
from tests.suite.reach.probes import block_names, instrument, keep

MODULE = '''"""A docstring."""
from __future__ import annotations

import enum


class Colour(enum.Enum):
    """Another."""

    RED = 1

    def shout(self):
        return self.name.upper()


class Point:
    __slots__ = ("x",)
    x: Undefined

    def __init__(self, x):
        self.x = x


def guard(values):
    """A third."""
    if not values:
        return "nothing"
    for value in values:
        if value < 0:
            continue
        total = value
    return total


def fail():
    raise ValueError("told")


async def wait():
    async with Context() as it:
        return it


class Context:
    async def __aenter__(self):
        return "entered"

    async def __aexit__(self, *error):
        pass


def numbers():
    yield 1
    yield 2


def choose(value):
    match value:
        case 1:
            return "one"
        case _:
            return "more"
'''

Loaded = tuple[ModuleType, bytearray]


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loaded]:
    """MODULE with probes, and what they store."""
    path = tmp_path / "probed.py"
    path.write_text(MODULE)
    reached = bytearray(100)
    monkeypatch.setattr(builtins, startup.NAME, reached, raising=False)
    module = ModuleType("probed")
    monkeypatch.setitem(sys.modules, "probed", module)
    exec(instrument(MODULE, str(path), 0), module.__dict__)
    yield module, reached
    linecache.checkcache(str(path))


def reached_lines(reached: bytearray) -> set[str]:
    """Return the first line of every block that was reached."""
    lines = MODULE.splitlines()
    found = set()
    for block in read(MODULE):
        if reached[block.number]:
            found.add(lines[block.suite[block.start].lineno - 1].strip())
    return found


def test_an_import_reaches_the_module_and_no_function(loaded: Loaded) -> None:
    _, reached = loaded
    names = block_names(MODULE)
    assert {names[number] for number in range(len(names)) if reached[number]} == {""}


def test_what_a_guard_keeps_out_is_not_reached(loaded: Loaded) -> None:
    module, reached = loaded
    reached[:] = bytes(len(reached))
    assert module.guard([]) == "nothing"
    assert reached_lines(reached) == {'"""A third."""', 'return "nothing"'}


def test_every_branch_that_is_taken_is_reached(loaded: Loaded) -> None:
    module, reached = loaded
    reached[:] = bytes(len(reached))
    assert module.guard([2]) == 2
    assert reached_lines(reached) == {'"""A third."""', "for value in values:", "if value < 0:", "total = value"}
    assert module.choose(5) == "more"
    assert 'return "more"' in reached_lines(reached)
    assert 'return "one"' not in reached_lines(reached)


def test_docstrings_lines_and_definitions_stay_as_they_are(loaded: Loaded) -> None:
    module, _ = loaded
    assert (module.__doc__, module.Colour.__doc__, module.guard.__doc__) == ("A docstring.", "Another.", "A third.")
    assert [colour.name for colour in module.Colour] == ["RED"]
    assert module.Point(3).x == 3
    assert module.Point.__annotations__ == {"x": "Undefined"}  # not evaluated: the future import still counts
    assert inspect.getsource(module.fail) == 'def fail():\n    raise ValueError("told")\n'


def test_tracebacks_show_the_lines_of_the_source(loaded: Loaded) -> None:
    module, _ = loaded
    with pytest.raises(ValueError, match="told") as caught:
        module.fail()
    last = traceback.extract_tb(caught.tb)[-1]
    assert last.line == 'raise ValueError("told")'


def test_coroutines_and_generators_stay_what_they_are(loaded: Loaded) -> None:
    module, _ = loaded
    assert inspect.iscoroutinefunction(module.wait)
    assert asyncio.run(module.wait()) == "entered"
    assert list(module.numbers()) == [1, 2]


def test_torch_compile_does_not_see_probes_and_what_it_compiles_counts_as_reached(loaded: Loaded) -> None:
    module, reached = loaded
    reached[:] = bytes(len(reached))
    read = [
        SimpleNamespace(opcode=i.opcode, opname=i.opname, arg=i.arg, argval=i.argval)
        for i in dis.get_instructions(module.guard)
    ]
    hidden = startup.Compiler(reached).hide(read)
    assert len(hidden) == len(list(dis.get_instructions(module.guard)))
    assert startup.NAME not in {instruction.argval for instruction in hidden}
    assert {name for number, name in enumerate(block_names(MODULE)) if reached[number]} == {"guard"}
    assert sum(instruction.opname == "NOP" for instruction in hidden) == 4 * sum(reached)


PROGRAM = """
import os
from operator_code import forks, plain
plain()
if os.fork() == 0:
    forks()
    os._exit(0)
os.wait()
open("data/read.txt").read()
print(os.environ.get("PYTHONPATH"))
os.kill(os.getpid(), 9)
"""

Run = Callable[..., set[str]]


@pytest.fixture
def record(tmp_path: Path) -> Run:
    """Run a program in the interpreter of a recording of a small repository; returns what was reached."""
    root = tmp_path / "root"
    files = {
        "operator/operator_code.py": "def plain():\n    pass\ndef forks():\n    pass\ndef never():\n    pass\n",
        "operator/operator_main.py": "def main():\n    pass\nif __name__ == '__main__':\n    main()\n",
        "data/read.txt": "read",
        "data/unread.txt": "not read",
    }
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    names = {path: block_names(text) for path, text in files.items() if path.endswith(".py")}
    firsts, place = {}, startup.HELD
    for path, held in names.items():
        firsts[path], place = place, place + len(held)
    places = {path: place + number for number, path in enumerate(files)}
    keep(root, tmp_path / "code", firsts)
    interpreter = Interpreter(tmp_path / "worker", place + len(places))
    interpreter.plan(root, tmp_path / "code", places)

    def run(*words: str, touched: str = "") -> set[str]:
        interpreter.clear()
        if touched:
            (root / touched).write_text((root / touched).read_text() + "\n")
        process = tied.popen(
            [str(interpreter.python), *words], cwd=root, env={"PATH": "/usr/bin", "PYTHONPATH": str(root / "operator")}
        )
        process.wait()
        reached = interpreter.read()
        found = {path for path, at in places.items() if reached[at]}
        for path, held in names.items():
            found |= {name for at, name in enumerate(held, firsts[path]) if name and reached[at]}
        return found | ({"changed"} if reached[startup.CHANGED] else set())

    return run


def test_forks_and_a_killed_process_are_recorded_and_so_are_files_that_they_read(record: Run) -> None:
    assert record("-c", textwrap.dedent(PROGRAM)) == {"plain", "forks", "data/read.txt"}


def test_a_module_that_is_run_by_its_name_is_recorded(record: Run) -> None:
    assert record("-m", "operator_main") == {"main"}


def test_a_source_that_was_changed_during_a_recording_is_told(record: Run) -> None:
    assert record("-c", "import operator_code", touched="operator/operator_code.py") == {"changed"}


def test_a_program_that_is_run_by_its_path_counts_as_read(record: Run) -> None:
    main = "operator/operator_main.py"
    assert record(main) == {main}
    assert record("-c", f"import runpy; runpy.run_path({main!r})") == {main}


def test_an_import_or_a_traceback_does_not_count_as_reading_a_source(record: Run) -> None:
    assert record("-c", "import operator_code as c, linecache; linecache.getline(c.__file__, 1)") == set()
    assert record("-c", "import operator_code as c; open(c.__file__).read()") == {"operator/operator_code.py"}
