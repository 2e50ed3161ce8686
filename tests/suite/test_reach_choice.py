"""Which tests are chosen for a change of a small made-up repository. The hash of a text is the text itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePosixPath

import pytest

from tests.suite.reach.blocks import read
from tests.suite.reach.checkout import Checkout
from tests.suite.reach.choice import (
    FAR,
    GRAPH,
    ITSELF,
    NAME,
    NAMESAKE,
    OLD,
    RECORD,
    SPECIAL,
    UNSURE,
    Choice,
    Sight,
    _is_neighbour,
    choose,
    without_farthest,
)
from tests.suite.reach.facts import PACKAGES, SUITE, read_facts
from tests.suite.reach.graph import CONFTEST, Graph, is_test_file
from tests.suite.reach.probes import is_probed
from tests.suite.reach.recordfile import Record, Text, Unit

PLAN = "operator/trainmaster_operator/plan.py"
RULES = "operator/trainmaster_operator/rules.py"
LATE = "operator/trainmaster_operator/late.py"
TEST_PLAN = "tests/a/test_plan.py"
TEST_RULES = "tests/a/test_rules.py"
TEST_OTHER = "tests/b/test_other.py"
ONE = "tests/b/test_other.py::test_one"

TREE = {
    PLAN: """
from trainmaster_operator import rules
LIMIT = 3
def plan(x):
    if x:
        return rare(x)
    return rules.check(x)
def rare(x):
    return x
""",
    RULES: """
def check(x):
    return not x
def load():
    return (HERE / "rules.yaml").read_text()
""",
    LATE: "def late():\n    return 1\n",
    "tests/conftest.py": "",
    "tests/a/conftest.py": "",
    "tests/a/world.py": "from trainmaster_operator import rules\n",
    TEST_PLAN: "from trainmaster_operator import plan\nplan.plan(1)\n",
    TEST_RULES: "from tests.a import world\nfrom trainmaster_operator import rules\n",
    TEST_OTHER: "def test_one():\n    from trainmaster_operator import plan, late\n",
    "manifests/rules.yaml": "a: 1\n",
    "docs/page.md": "# Page\n",
    "data/unknown.bin": "?",
    "pyproject.toml": "[project]\n",
}


def blocks(path: str, *functions: str, text: Mapping[str, str] = TREE) -> tuple[Text, frozenset[int]]:
    """Return the text of a file with the blocks of these functions and of the module."""
    found = read(text[path])
    return Text(path, text[path]), frozenset(block.number for block in found if block.name in ("", *functions))


def unit(*reached: tuple[Text, frozenset[int]], own: str, used: tuple[str, ...] = (), complete: bool = True) -> Unit:
    known = frozenset(Text(path, text) for path, text in TREE.items() if is_probed(path))
    conftests = [str(PurePosixPath(folder, "conftest.py")) for folder in PurePosixPath(own).parents]
    return Unit(
        1,
        dict(reached),
        frozenset(Text(path, TREE[path]) for path in used),
        frozenset(Text(path, TREE[path]) for path in (own, *conftests) if path in TREE),
        known,
        complete,
    )


RECORDED = Record(
    {
        TEST_PLAN: unit(blocks(PLAN, "plan", "rare"), blocks(RULES), own=TEST_PLAN),
        TEST_RULES: unit(
            blocks(RULES, "check", "load"), blocks("tests/a/world.py"), own=TEST_RULES, used=("manifests/rules.yaml",)
        ),
        TEST_OTHER: unit(own=TEST_OTHER),
        ONE: unit(blocks(PLAN, "plan"), blocks(RULES, "check"), own=TEST_OTHER),
    }
)


def sight(
    now: Mapping[str, str | None], before: Mapping[str, str | None] | None = None, record: Record = RECORDED
) -> Sight:
    """Return what there is to see after TREE became `before` (in commits) and then `now` (in the working tree)."""
    old = {path: text for path, text in {**TREE, **(before or {})}.items() if text is not None}
    new = {path: text for path, text in {**old, **now}.items() if text is not None}
    facts = {path: read_facts(text) for path, text in new.items() if ".py" in path}
    return Sight(
        blobs_before=old,
        blobs_now=new,
        listings_before={"manifests": " ".join(path for path in old if path.startswith("manifests/"))},
        listings_now={"manifests": " ".join(path for path in new if path.startswith("manifests/"))},
        text_of=lambda blob: None if blob == "gone" else blob,
        text_now=new.get,
        graph=Graph(facts, new, [path for path in old if ".py" in path and path not in new]),
        record=record,
    )


def edit(path: str, old: str, new: str) -> dict[str, str | None]:
    assert old in TREE[path]
    return {path: TREE[path].replace(old, new)}


def sources(choice: Choice) -> dict[str, str]:
    return {name: hit.source for name, hit in choice.units.items()}


def test_a_change_in_a_function_chooses_what_executed_it() -> None:
    choice = choose(sight(edit(PLAN, "    return x\n", "    return 2 * x\n")))
    assert sources(choice) == {TEST_PLAN: RECORD}
    assert choice.rows[0].kind == "in rare"


def test_a_line_inserted_into_a_branch_chooses_what_executed_the_branch() -> None:
    inside = choose(sight(edit(PLAN, "        return rare(x)", "        log()\n        return rare(x)")))
    assert set(inside.units) == {TEST_PLAN, ONE}
    assert choose(sight(edit(RULES, "    return not x", "    log()\n    return not x"))).units.keys() == {
        TEST_RULES,
        ONE,
    }


@pytest.mark.parametrize(("old", "new"), [("LIMIT = 3", "LIMIT = 4"), ("def rare", "class New:\n    pass\ndef rare")])
def test_a_change_at_the_level_of_a_module_chooses_what_imported_it(old: str, new: str) -> None:
    choice = choose(sight(edit(PLAN, old, new)))
    assert sources(choice) == {TEST_PLAN: RECORD, ONE: RECORD}
    assert choice.rows[0].kind == "module level"


def test_a_new_function_chooses_some_that_import_the_module() -> None:
    other = {f"tests/b/test_other.py::test_{n}": unit(blocks(RULES), blocks(PLAN), own=TEST_OTHER) for n in range(9)}
    choice = choose(sight(edit(RULES, "def load", "def new():\n    pass\ndef load"), record=RECORDED.with_units(other)))
    assert choice.rows[0].kind == "names: new"
    assert len(choice.units) == 3


def test_a_new_name_that_an_importer_already_mentions_counts_for_the_module() -> None:
    before = edit("tests/a/world.py", "import rules", "import rules\nrules.new()")
    choice = choose(sight(edit(RULES, "def load", "def new():\n    pass\ndef load"), before=before))
    assert choice.rows[0].kind == "module level"
    assert set(choice.units) == {TEST_PLAN, TEST_RULES, ONE}


def test_a_comment_chooses_nothing() -> None:
    choice = choose(sight(edit(PLAN, "LIMIT = 3", "LIMIT = 3  # seconds")))
    assert not choice.units
    assert choice.rows[0].kind == "comments, docstrings or formatting"


def test_without_a_record_the_import_graph_chooses_also_by_lazy_imports() -> None:
    choice = choose(sight(edit(LATE, "return 1", "return 2"), record=Record()))
    assert sources(choice) == {TEST_OTHER: GRAPH}


def test_a_removed_module_chooses_what_imported_it() -> None:
    assert sources(choose(sight({RULES: None}))) == {TEST_PLAN: RECORD, TEST_RULES: RECORD, ONE: RECORD}


def test_a_removed_module_chooses_what_still_imports_it_without_a_record() -> None:
    assert TEST_OTHER in choose(sight({LATE: None}, record=Record())).units
    package = {LATE: None, LATE.replace(".py", "/__init__.py"): TREE[LATE]}
    assert TEST_OTHER in choose(sight({**package, LATE.replace(".py", "/inner.py"): ""}, record=Record())).units


def recorded_alone(tree: Mapping[str, str | None]) -> Record:
    """The record of TEST_OTHER, which consisted of nothing else when it was recorded."""
    return Record({TEST_OTHER: replace(unit(own=TEST_OTHER), own=frozenset({Text(TEST_OTHER, str(tree[TEST_OTHER]))}))})


def test_a_record_without_a_conftest_that_is_newer_excludes_nothing() -> None:
    plain = {TEST_OTHER: "def test_one():\n    pass\n", "tests/conftest.py": None}
    newer = {**plain, "tests/b/conftest.py": "from trainmaster_operator import rules\n"}
    changed = edit(RULES, "def check", "X = 1\ndef check")
    assert TEST_OTHER not in choose(sight(changed, plain, recorded_alone(plain))).units
    assert choose(sight(changed, newer, recorded_alone(plain))).units[TEST_OTHER].source == GRAPH


def test_a_record_of_before_a_folder_had_probes_excludes_nothing() -> None:
    world = {TEST_OTHER: "from simulation import world\n", "simulation/world.py": TREE[PLAN], "tests/conftest.py": None}
    changed = edit(RULES, "def check", "X = 1\ndef check")
    assert choose(sight(changed, world, recorded_alone(world))).units[TEST_OTHER].source == GRAPH


def test_every_module_of_this_repository_has_probes_but_tests_and_examples() -> None:
    files = [path for path in Checkout().files if path.endswith(".py") and not path.startswith(("examples/", SUITE))]
    plain = [path for path in files if not is_probed(path)]
    assert [path for path in plain if not is_test_file(path) and PurePosixPath(path).name != CONFTEST] == []
    top = {path.partition("/")[0] for path in files} - {".ci", "operator", "trainer"}
    assert top <= set(PACKAGES)


def test_a_module_that_the_record_does_not_know_is_reached_by_the_import_graph() -> None:
    fresh = "operator/trainmaster_operator/fresh.py"
    changes = {fresh: "X = 1", **edit(RULES, "def check", "import trainmaster_operator.fresh\ndef check")}
    row = next(row for row in choose(sight(changes)).rows if row.path == fresh)
    assert row.kind == "new module"
    assert row.units == dict.fromkeys((TEST_PLAN, TEST_RULES, TEST_OTHER, ONE), GRAPH)


def test_a_changed_test_file_is_chosen_with_all_its_tests() -> None:
    choice = choose(sight(edit(TEST_OTHER, "test_one", "test_two")))
    assert sources(choice) == {TEST_OTHER: ITSELF, ONE: ITSELF}


@pytest.mark.parametrize(("record", "source"), [(RECORDED, RECORD), (Record(), GRAPH)])
def test_a_file_of_the_tests_chooses_those_that_import_it(record: Record, source: str) -> None:
    choice = choose(sight(edit("tests/a/world.py", "import rules", "import plan"), record=record))
    assert sources(choice) == {TEST_RULES: source}


def test_a_conftest_chooses_all_tests_below_its_folder() -> None:
    choice = choose(sight({"tests/a/conftest.py": "x = 1"}))
    assert set(choice.units) == {TEST_PLAN, TEST_RULES}


def test_a_data_file_chooses_what_read_it_and_what_executes_a_line_that_names_it() -> None:
    assert sources(choose(sight({"manifests/rules.yaml": "a: 2"}))) == {TEST_RULES: NAME}
    without = Record({name: unit(*RECORDED.units[name].reached.items(), own=TEST_PLAN) for name in RECORDED.units})
    assert set(choose(sight({"manifests/rules.yaml": "a: 2"}, record=without)).units) == {TEST_RULES}


def test_a_new_file_chooses_what_listed_its_folder() -> None:
    listing = unit(own=TEST_PLAN)
    listed = Unit(1, {}, frozenset({Text("manifests", "manifests/rules.yaml")}), listing.own, listing.known)
    record = RECORDED.with_units({TEST_PLAN: listed})
    choice = choose(sight({"manifests/new.yaml": "b: 1"}, record=record))
    assert sources(choice) == {TEST_PLAN: NAME}


@pytest.mark.parametrize("path", ["data/unknown.bin", "pyproject.toml"])
def test_what_nobody_names_and_what_concerns_all_chooses_everything(path: str) -> None:
    choice = choose(sight({path: "changed"}))
    assert sources(choice) == dict.fromkeys((TEST_PLAN, TEST_RULES, TEST_OTHER, ONE), UNSURE)


def test_a_page_that_no_test_names_chooses_nothing() -> None:
    choice = choose(sight({"docs/page.md": "# Other\n"}))
    assert not choice.units
    assert choice.rows[0].kind == "data, which no test names"


def test_an_old_record_is_trusted_where_nothing_that_a_test_executed_has_changed() -> None:
    """RULES changed since the record in what ONE and TEST_RULES executed; TEST_PLAN executes what it did."""
    before = edit(RULES, "    return not x", "    return x is None")
    choice = choose(sight(edit(PLAN, "    return x\n", "    return 2 * x\n"), before=before))
    assert choice.stale == {TEST_RULES, ONE}
    assert sources(choice) == {TEST_PLAN: RECORD, ONE: OLD}
    assert sources(choose(sight(edit(LATE, "1", "2"), before=before))) == {ONE: GRAPH}


def test_a_change_is_found_in_a_text_that_is_newer_than_the_record() -> None:
    before = edit(PLAN, "LIMIT = 3", "# seconds\n\nLIMIT = 3")
    now = {PLAN: str(before[PLAN]).replace("    return x\n", "    return 2 * x\n")}
    choice = choose(sight(now, before=before))
    assert not choice.stale
    assert sources(choice) == {TEST_PLAN: RECORD}


def test_a_text_of_the_record_that_git_no_longer_has_counts_as_changed_at_the_level_of_the_module() -> None:
    record = RECORDED.with_units({TEST_PLAN: unit((Text(PLAN, "gone"), frozenset({0, 1})), own=TEST_PLAN)})
    choice = choose(sight(edit(RULES, "return not x", "return x"), record=record))
    assert choice.units[TEST_PLAN].source == GRAPH
    assert TEST_PLAN not in without_farthest(choice).units


def test_an_incomplete_record_of_a_test_does_not_exclude_it() -> None:
    record = RECORDED.with_units({TEST_PLAN: unit(own=TEST_PLAN, complete=False)})
    choice = choose(sight(edit(RULES, "return not x", "return x"), record=record))
    assert sources(choice) == {TEST_PLAN: GRAPH, TEST_RULES: RECORD, ONE: RECORD}


def test_tests_that_need_not_run_are_left_out_of_their_file() -> None:
    two = "tests/b/test_other.py::test_two"
    record = RECORDED.with_units({two: unit(blocks(PLAN, "plan", "rare"), own=TEST_OTHER)})
    choice = choose(sight(edit(RULES, "    return not x", "    return x"), record=record))
    assert ONE in choice.units
    assert choice.left_out(TEST_OTHER) == [two]


def test_tests_of_the_same_name_are_nearest_and_special_ones_near() -> None:
    choice = choose(sight(edit(RULES, "    return not x", "    return x")))
    assert choice.units[TEST_RULES].nearness == NAMESAKE
    assert choice.units[ONE].nearness == SPECIAL
    assert choose(sight(edit(LATE, "1", "2"), record=Record())).units[TEST_OTHER].nearness == FAR


@pytest.mark.parametrize(
    ("unit", "is_near"), [("tests/control/test_fleet.py::test_it", True), ("tests/planning/test_hang.py", False)]
)
def test_tests_are_near_what_their_folder_is_about(unit: str, is_near: bool) -> None:
    assert _is_neighbour("operator/trainmaster_operator/control/agent_state.py", unit) == is_near


def test_files_that_say_in_which_order_tests_run_reach_only_the_tests_of_the_suite() -> None:
    suite = "tests/suite/test_it.py"
    tree = {suite: "", "tests/suite/order.py": 'FILE = "durations.json"', "tests/suite/durations.json": "{}"}
    choice = choose(sight({"tests/suite/durations.json": "[]"}, before=tree))
    assert set(choice.units) == {suite}
