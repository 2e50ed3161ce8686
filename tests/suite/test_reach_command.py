"""`python -m tests.suite.reach` in a small repository: what it says, and what it runs in which order."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.suite import order, plugin
from tests.suite.reach import __main__ as command
from tests.suite.reach import selection
from tests.suite.reach.checkout import Checkout
from tests.suite.reach.selection import nearness_of, sort

FILES = {
    "operator/trainmaster_operator/__init__.py": "",
    "operator/trainmaster_operator/plan.py": "def plan():\n    return 1\n",
    "tests/test_plan.py": (
        "from trainmaster_operator.plan import plan\n"
        "def test_the_plan():\n    assert plan() == 1\n"
        "def test_of_something_else():\n    pass\n"
    ),
    "tests/test_a_use.py": "from trainmaster_operator import plan\ndef test_a_use():\n    assert plan.plan() > 0\n",
    "tests/test_far.py": "def test_far():\n    pass\n",
    "tests/suite/reach/selection.py": Path(selection.__file__).read_text(),
    "pyproject.toml": (
        '[tool.pytest.ini_options]\naddopts = "--import-mode=importlib"\npythonpath = ["operator", "."]\n'
        'markers = ["release: none", "processes: none"]\n'
    ),
}


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    """A repository with one commit on main; the command works on it."""
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    made = Checkout(tmp_path)
    made.git("init", "--initial-branch=main")
    made.git("add", ".")
    made.git("-c", "user.name=x", "-c", "user.email=x@example.invalid", "commit", "-m", "First")
    monkeypatch.setattr(command, "Checkout", partial(Checkout, tmp_path))
    return made


@pytest.fixture
def change(checkout: Checkout) -> Callable[[str, str], None]:
    def write(path: str, text: str) -> None:
        (checkout.root / path).write_text(text)

    return write


PLAN = "operator/trainmaster_operator/plan.py"


def test_nothing_changed_is_said_and_is_no_failure(checkout: Checkout, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([]) == 0
    assert capsys.readouterr().out == "Nothing has changed. `make test` runs all tests.\n"


def test_a_dry_run_says_what_changed_and_what_it_reaches(
    change: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    change(PLAN, "def plan():\n    return 2\n")
    change("operator/trainmaster_operator/new.py", "")
    assert command.main(["--dry-run"]) == 0
    said = capsys.readouterr().out
    assert f"{PLAN:56}      3  import graph: in plan\n" in said
    assert f"{'operator/trainmaster_operator/new.py':56}      0  new module\n" in said
    assert "Chosen: 3 tests of 2 files" in said
    assert "First: tests/test_plan.py, tests/test_a_use.py" in said


def test_the_choice_can_be_had_as_json(change: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]) -> None:
    change(PLAN, "def plan():\n    return 2\n")
    assert command.main(["--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["units"]["tests/test_plan.py"] == {"path": PLAN, "source": "import graph", "nearness": 0}
    assert set(said["units"]) == {"tests/test_plan.py", "tests/test_a_use.py"}


def test_a_change_that_reaches_no_test_is_told(
    change: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    change(PLAN, "# A plan.\ndef plan():\n    return 1\n")
    assert command.main([]) == 0
    assert "What changed can reach no test." in capsys.readouterr().out


def test_a_revision_that_git_does_not_know_is_refused(checkout: Checkout, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--base", "nowhere"]) == 2
    assert capsys.readouterr().err == (
        "--base 'nowhere' is no commit of this repository; a commit, a branch or a tag would be right\n"
    )


def test_what_is_chosen_is_run_and_the_exit_code_is_the_one_of_pytest(
    change: Callable[[str, str], None], capfd: pytest.CaptureFixture[str]
) -> None:
    change(PLAN, "def plan():\n    return 2\n")
    assert command.main(["--", "-n", "0", "-v", "-p", "no:cacheprovider"]) == 1
    lines = [line.partition(" ")[0] for line in capfd.readouterr().out.splitlines() if "::" in line and "%]" in line]
    assert lines == [
        "tests/test_plan.py::test_the_plan",
        "tests/test_plan.py::test_of_something_else",
        "tests/test_a_use.py::test_a_use",
    ]


@pytest.mark.parametrize(("plan", "ended"), [("return 2", "1 failed"), ("return 1 + 0", "none failed")])
def test_it_is_told_when_the_nearest_tests_are_done(
    change: Callable[[str, str], None], capfd: pytest.CaptureFixture[str], plan: str, ended: str
) -> None:
    change(PLAN, f"def plan():\n    {plan}\n")
    command.main(["--", "-n", "0", "-p", "no:cacheprovider"])
    (line,) = (line for line in capfd.readouterr().out.splitlines() if "nearest to the change" in line)
    assert line.startswith("The 2 tests nearest to the change have ended after ")
    assert line.endswith(f" s; {ended}. Still to run: 1.")


def test_a_change_that_reaches_all_tests_runs_them_by_the_settings_of_the_repository(
    checkout: Checkout, change: Callable[[str, str], None], capfd: pytest.CaptureFixture[str]
) -> None:
    change("pyproject.toml", FILES["pyproject.toml"] + "# A change.\n")
    assert command.main(["--", "-n", "0", "-p", "no:cacheprovider"]) == 0
    said = capfd.readouterr().out
    assert f"rootdir: {checkout.root}\n" in said
    assert "4 passed" in said


def test_tests_that_cannot_be_reached_are_deselected(checkout: Checkout, tmp_path: Path) -> None:
    said = tmp_path / "choice.json"
    left_out = "tests/test_plan.py::test_of_something_else"
    said.write_text(json.dumps({"leave_out": [left_out], "nearness": {"tests/test_a_use.py": 0}, "about": 0}))
    words = [*command.PYTEST, "-q", "-p", "no:cacheprovider", "--reach-choice", str(said), "tests/test_plan.py"]
    done = subprocess.run(words, cwd=checkout.root, capture_output=True, text=True, check=False)
    assert "1 passed, 1 deselected" in done.stdout


def test_groups_of_near_tests_come_first_and_stay_together() -> None:
    groups = ["far", "near", "far", "alone", "near", "middle"]
    places = [(2, True), (1, False), (0, True), (0, False), (2, False), (0, False)]
    assert sort(groups, places) == [5, 0, 2, 1, 4, 3]


def test_groups_are_where_the_plugin_of_the_suite_writes_them() -> None:
    assert (selection.HANDOVER, selection.LAST) == (plugin.HANDOVER, order.ALONE)


def test_a_test_is_as_near_as_its_unit() -> None:
    nearness = {"a.py": 1, "a.py::one": 0, "b.py::two": 2}
    assert [nearness_of(test, nearness) for test in ("a.py::one", "a.py::three", "b.py::new")] == [0, 1, 2]
