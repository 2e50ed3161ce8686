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
    "tests/a/test_start.py": "from trainmaster_operator import start",
    "tests/a/test_probe.py": 'PROBE = Path(__file__).with_name("probe.py")',
    "tests/a/test_program.py": 'PROGRAM = """\nfrom trainmaster.codes import Code\n"""',
    "tests/a/test_prefix.py": 'def load(name):\n    return import_module(f"trainmaster.agent.{name}")',
    "tests/a/test_fixture.py": "def test_it(started):\n    pass",
    "tests/a/test_version.py": "import trainmaster\nfrom trainmaster import __version__\nprint(trainmaster.__file__)",
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
    facts = {path: read_facts(text, by_definition="conftest" in path) for path, text in SOURCES.items()}
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
        ("prefix", ["rank", "agent/__main__"], ["heavy"]),
        ("fixture", ["tests/zygote", "steps", "heavy", "start", "rank"], ["page"]),
        ("version", ["trainmaster/__init__"], ["heavy"]),
        ("label", [], ["heavy"]),
        ("main", [], ["rank"]),
        ("script", ["agent/__main__", "rank"], ["heavy"]),
        ("patched", ["steps", "heavy", "codes"], ["rank"]),
        ("loaded", ["agent/__main__", "rank"], ["heavy"]),
        ("types", [], ["codes"]),
    ],
)
def test_a_test_reaches_what_its_text_says(graph: Graph, test: str, reached: list[str], not_reached: list[str]) -> None:
    closure = graph.closure(f"tests/a/test_{test}.py")
    for name in reached:
        assert any(path.endswith(f"{name}.py") for path in closure), name
    for name in not_reached:
        assert not any(path.endswith(f"/{name}.py") for path in closure), name


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
