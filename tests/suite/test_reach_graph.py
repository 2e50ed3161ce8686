"""What test files can use, by the texts of a small made-up repository."""

from __future__ import annotations

import pytest

from tests.suite.reach.facts import read_facts
from tests.suite.reach.graph import Graph, names

SOURCES = {
    "operator/trainmaster_operator/__init__.py": "",
    "operator/trainmaster_operator/plan.py": "from trainmaster_operator import rules\nrules.check()",
    "operator/trainmaster_operator/rules.py": "",
    "operator/trainmaster_operator/start.py": 'COMMAND = ["python", "-m", "trainmaster.agent"]',
    "operator/trainmaster_operator/page.py": 'STYLE = Path(__file__).with_name("page.css")',
    "trainer/trainmaster/__init__.py": 'import importlib\nLAZY = {"init": "trainmaster.steps"}',
    "trainer/trainmaster/steps.py": "def init():\n    from trainmaster import heavy",
    "trainer/trainmaster/heavy.py": "",
    "trainer/trainmaster/codes.py": "",
    "trainer/trainmaster/agent/__init__.py": "",
    "trainer/trainmaster/agent/__main__.py": "from trainmaster.agent import rank\nrank.main()",
    "trainer/trainmaster/agent/rank.py": "",
    "tests/conftest.py": """
from tests.zygote import zygote
from trainmaster_operator import start
@pytest.fixture
def started(zygote):
    return start.run(zygote)
@pytest.fixture
def page():
    from trainmaster_operator import page
""",
    "tests/zygote.py": "from trainmaster import steps\ndef zygote():\n    steps.init()",
    "tests/a/probe.py": "import beside",
    "tests/a/beside.py": "from trainmaster import codes",
    "tests/a/test_plan.py": "from trainmaster_operator.plan import plan",
    "tests/a/test_codes.py": "from trainmaster import codes",
    "tests/a/test_whole.py": "import trainmaster as tm\ntm.init()",
    "tests/a/test_start.py": "from trainmaster_operator import start\nprint(start.COMMAND)",
    "tests/a/test_probe.py": 'PROBE = Path(__file__).with_name("probe.py")',
    "tests/a/test_program.py": 'PROGRAM = """\nfrom trainmaster.codes import Code\n"""',
    "tests/a/test_program_of_a_module.py": 'PROGRAM = "import sys; from trainmaster import heavy as h, codes"',
    "tests/a/test_program_of_any.py": 'def load(name):\n    return f"from trainmaster.agent import {name}"',
    "tests/a/test_around.py": "from trainmaster_operator import around\naround.FOLDER",
    "operator/trainmaster_operator/around.py": (
        "FOLDER = Path(__file__).parent\ndef f():\n    from trainmaster import heavy"
    ),
    "tests/a/test_both.py": "from trainmaster_operator.both import codes\ncodes()",
    "operator/trainmaster_operator/both/__init__.py": "def codes():\n    from trainmaster import codes",
    "operator/trainmaster_operator/both/codes.py": "",
    "tests/a/test_self.py": "from trainmaster_operator import itself\nitself.start()",
    "operator/trainmaster_operator/itself.py": (
        "def start():\n    run([__file__])\ndef main():\n    from trainmaster import codes\n"
        "if __name__ == '__main__':\n    main()\n"
    ),
    "tests/a/test_table.py": "from trainmaster_operator.table import module_of\nmodule_of('plan')",
    "operator/trainmaster_operator/table.py": (
        'def module_of(name):\n    return f"{__package__}.rooms.{name}_command"\n'
    ),
    "operator/trainmaster_operator/rooms/plan_command.py": "def declare():\n    from trainmaster import codes",
    "tests/a/test_later.py": "from trainmaster.wire import altered\naltered()",
    "trainer/trainmaster/wire/__init__.py": (
        "if TYPE_CHECKING:\n    from trainmaster.wire.codec import altered\n"
        "    from trainmaster.wire.other import another\n"
        'def __getattr__(name):\n    return import_module(f"{__name__}.{MODULES[name]}")\n'
    ),
    "trainer/trainmaster/wire/codec.py": "def altered():\n    from trainmaster import codes",
    "trainer/trainmaster/wire/other.py": "def another():\n    from trainmaster import heavy",
    "tests/a/test_named.py": "from trainmaster_operator import named\nnamed.command()",
    "operator/trainmaster_operator/named.py": (
        "def command():\n    return code_of_call(__name__, 'main')\ndef main():\n    from trainmaster import codes\n"
    ),
    "tests/a/test_logger.py": "from trainmaster_operator import logged\nlogged.light()",
    "operator/trainmaster_operator/logged.py": (
        "LOG = getLogger(__name__)\ndef light():\n    LOG.info('light')\n"
        "def main():\n    from trainmaster import heavy\n"
    ),
    "tests/a/test_injected.py": 'INJECTED = Path(__file__).parent / "injected"',
    "tests/a/injected/sitecustomize.py": "from trainmaster import codes",
    "tests/a/test_package.py": 'PACKAGE = Path(__file__).parent / "package"',
    "tests/a/package/__init__.py": "",
    "tests/a/package/found.py": "from trainmaster import codes",
    "tests/a/test_started.py": "from trainmaster_operator import started\nrun([started.__file__])",
    "operator/trainmaster_operator/started.py": "def main():\n    from trainmaster import codes",
    "tests/a/test_prefix.py": 'def load(name):\n    return import_module(f"trainmaster.agent.{name}")',
    "tests/a/test_fixture.py": "def test_it(started):\n    pass",
    "tests/a/test_version.py": "import trainmaster\nfrom trainmaster import __version__\nprint(trainmaster.__file__)",
    "operator/trainmaster_operator/many.py": """
import trainmaster.codes as codes
from trainmaster_operator.rules import check as verify
LIMIT = 3
TABLE = {"one": lambda: verify()}
def light():
    return LIMIT
def loads():
    return codes.load()
@command
def registered():
    from trainmaster_operator import page
class Model(Base):
    field: codes.Code
def again():
    return light()
""",
    "operator/trainmaster_operator/facade.py": "from trainmaster_operator.many import again, loads",
    "tests/a/test_light.py": "from trainmaster_operator import many\nmany.light()",
    "tests/a/test_again.py": "from trainmaster_operator.facade import again\nagain()",
    "tests/a/test_object.py": "from trainmaster_operator import many\nuse(many)",
    "tests/a/test_imported_fixture.py": "from tests.zygote import zygote\ndef test_it(zygote):\n    pass",
    "tests/a/test_main.py": 'MAIN = f"{folder}/__main__.py"',
    "tests/a/test_script.py": 'SCRIPT = ROOT / "trainer" / "trainmaster" / "agent" / "__main__.py"',
    "tests/a/test_label.py": 'LABEL = "trainmaster.dev/job"',
    "tests/a/test_patched.py": 'patch("trainmaster.init", None)\npatch("trainmaster.codes.LIMIT", 1)',
    "tests/a/test_loaded.py": 'import importlib\nimportlib.import_module("trainmaster.agent.__main__")',
    "tests/a/test_types.py": "if TYPE_CHECKING:\n    from trainmaster import codes",
    "tests/a/test_sources.py": 'FILES = sorted((ROOT / "tests").rglob("*.py"))',
    "tests/a/test_data.py": 'EXAMPLES = ROOT / "manifests" / "examples"',
}
DATA = ["manifests/examples/job.yaml", "operator/trainmaster_operator/page.css", "docs/page.md"]


@pytest.fixture(scope="module")
def graph() -> Graph:
    facts = {path: read_facts(text) for path, text in SOURCES.items()}
    return Graph(facts, DATA)


@pytest.mark.parametrize(
    ("test", "reached", "not_reached"),
    [
        ("plan", ["rules", "plan"], ["rank", "heavy"]),
        ("codes", ["codes", "trainmaster/__init__"], ["heavy", "rank"]),
        ("whole", ["steps", "heavy"], ["rank"]),
        ("start", ["start", "agent/__main__", "rank"], ["plan", "heavy"]),
        ("probe", ["probe", "beside", "codes"], ["heavy"]),
        ("program", ["codes"], ["heavy"]),
        ("program_of_a_module", ["heavy", "codes"], ["rank"]),
        ("program_of_any", ["rank"], ["heavy"]),
        ("self", ["codes"], ["heavy"]),
        ("both", ["trainmaster/codes", "both/codes"], ["heavy"]),
        ("around", ["around"], ["heavy"]),
        ("prefix", ["rank", "agent/__main__"], ["heavy"]),
        ("table", ["rooms/plan_command", "codes"], ["heavy"]),
        ("later", ["wire/codec", "codes"], ["wire/other", "heavy"]),
        ("named", ["codes"], ["heavy"]),
        ("logger", ["logged"], ["heavy"]),
        ("injected", ["sitecustomize", "codes"], ["heavy"]),
        ("package", [], ["found", "codes"]),
        ("started", ["started", "codes"], ["heavy"]),
        ("fixture", ["tests/zygote", "steps", "heavy", "start", "rank"], ["page"]),
        ("version", ["trainmaster/__init__"], ["heavy"]),
        ("label", [], ["heavy"]),
        ("main", [], ["rank"]),
        ("script", ["agent/__main__", "rank"], ["heavy"]),
        ("patched", ["steps", "heavy", "codes"], ["rank"]),
        ("loaded", ["agent/__main__", "rank"], ["heavy"]),
        ("imported_fixture", ["steps", "heavy"], ["rank"]),
        ("types", [], ["codes"]),
    ],
)
def test_a_test_reaches_what_its_text_says(graph: Graph, test: str, reached: list[str], not_reached: list[str]) -> None:
    closure = graph.closure(f"tests/a/test_{test}.py")
    for name in reached:
        assert any(path.endswith(f"{name}.py") for path in closure), name
    for name in not_reached:
        assert not any(path.endswith(f"/{name}.py") for path in closure), name


@pytest.mark.parametrize(
    ("test", "reached", "not_reached"),
    [
        ("light", ["light", "registered", ""], ["loads", "again", "Model", "TABLE"]),
        ("again", ["again", "light"], ["loads"]),
        ("object", ["again", "light", "loads", "Model.method", "TABLE"], []),
        ("codes", [], ["light", "registered", ""]),
    ],
)
def test_of_a_module_only_those_definitions_are_reached_that_somebody_names(
    graph: Graph, test: str, reached: list[str], not_reached: list[str]
) -> None:
    many = "operator/trainmaster_operator/many.py"
    for name in reached:
        assert graph.reaches(f"tests/a/test_{test}.py", many, [name]), name
    for name in not_reached:
        assert not graph.reaches(f"tests/a/test_{test}.py", many, [name]), name


def test_a_function_that_is_gone_is_as_far_as_its_module(graph: Graph) -> None:
    many = "operator/trainmaster_operator/many.py"
    assert graph.reaches("tests/a/test_light.py", many, ["gone"])
    assert not graph.reaches("tests/a/test_codes.py", many, ["gone"])


def test_every_test_reaches_the_conftest_above_it(graph: Graph) -> None:
    assert all("tests/conftest.py" in graph.closure(test) for test in graph.tests)


@pytest.mark.parametrize(
    ("path", "by"),
    [
        ("manifests/examples/job.yaml", ["tests/a/test_data.py"]),
        ("operator/trainmaster_operator/page.css", ["operator/trainmaster_operator/page.py"]),
        ("docs/page.md", []),
        ("tests/a/probe.py", ["tests/a/test_probe.py", "tests/a/test_sources.py"]),
        ("trainer/trainmaster/codes.py", ["tests/a/test_sources.py"]),
    ],
)
def test_a_file_is_named_by_those_who_name_it_or_its_folder(graph: Graph, path: str, by: list[str]) -> None:
    assert sorted({file for file, _ in graph.naming(path)}) == by


@pytest.mark.parametrize(
    ("named", "path", "by", "meant"),
    [
        ("docs/page.md", "docs/page.md", "tests/test_x.py", True),
        ("page.md", "docs/page.md", "tests/test_x.py", True),
        ("docs", "docs/page.md", "tests/test_x.py", True),
        ("docs/*.md", "docs/page.md", "tests/test_x.py", True),
        ("found", "tests/a/found/x.json", "tests/a/test_x.py", True),
        ("*.md", "docs/page.md", "tests/test_x.py", False),
        ("found", "tests/a/found/x.json", "tests/b/test_x.py", False),
        ("page", "docs/page.md", "tests/test_x.py", False),
        ("docs/page.md/more", "docs/page.md", "tests/test_x.py", False),
    ],
)
def test_a_string_means_a_file_by_its_end_or_by_its_folder(named: str, path: str, by: str, meant: bool) -> None:
    assert names(named, path, by) == meant


def test_a_docstring_uses_nothing() -> None:
    facts = read_facts('"""See trainmaster.loop and docs/page.md."""')
    assert (facts.named, facts.files) == ([], [])
