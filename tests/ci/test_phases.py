"""Which phase of CI may start when, and what is told at the end."""

from __future__ import annotations

import pytest
from phases import PHASES, Outcome, Phase, Span, check, report, startable

PASSED, FAILED, ENDED = Outcome


def phase(name: str, *after: str, heavy: bool = False, cleanup: bool = False) -> Phase:
    return Phase(name, ("true",), after=after, heavy=heavy, cleanup=cleanup)


def started(phases: list[Phase], running: set[str], done: dict[str, Outcome], stopping: bool = False) -> list[str]:
    return [found.name for found in startable(phases, running, done, stopping)]


def test_a_phase_starts_once_all_phases_before_it_have_passed() -> None:
    phases = [phase("a"), phase("b"), phase("c", "a", "b")]
    assert started(phases, set(), {}) == ["a", "b"]
    assert started(phases, {"b"}, {"a": PASSED}) == []
    assert started(phases, set(), {"a": PASSED, "b": PASSED}) == ["c"]


def test_a_phase_after_one_that_failed_never_starts() -> None:
    assert started([phase("a"), phase("b", "a")], set(), {"a": FAILED}) == []


def test_at_most_two_heavy_phases_run_at_once_and_the_first_of_the_table_go_first() -> None:
    phases = [phase(name, heavy=True) for name in "abcd"]
    assert started(phases, set(), {}) == ["a", "b"]
    assert started(phases, {"a", "b"}, {}) == []
    assert started(phases, {"b"}, {"a": PASSED}) == ["c"]


def test_a_light_phase_needs_no_slot() -> None:
    phases = [phase("a", heavy=True), phase("b", heavy=True), phase("c")]
    assert started(phases, {"a", "b"}, {}) == ["c"]


def test_after_a_failure_only_phases_that_clean_up_start_once_nothing_else_runs() -> None:
    phases = [phase("a"), phase("b"), phase("c"), phase("down", "c", cleanup=True)]
    done = {"a": FAILED}
    assert started(phases, {"b"}, done, stopping=True) == []
    assert started(phases, set(), {**done, "b": ENDED}, stopping=True) == ["down"]
    assert started(phases, {"down"}, {**done, "b": ENDED}, stopping=True) == []


def test_without_a_failure_cleaning_up_waits_for_its_turn() -> None:
    phases = [phase("a"), phase("down", "a", cleanup=True)]
    assert started(phases, set(), {}) == ["a"]
    assert started(phases, set(), {"a": PASSED}) == ["down"]


@pytest.mark.parametrize(
    ("phases", "words"),
    [
        ([phase("a"), phase("a")], "two phases have the name a"),
        ([phase("a", "b")], "phase a comes after b, but there is no phase b"),
        ([phase("a", "b"), phase("b", "a")], "phases wait for each other: "),
        ([phase("a", cleanup=True), phase("b", "a")], "phase b comes after a, which cleans up"),
    ],
    ids=["a name twice", "an unknown name", "a circle", "a follower of the cleaning"],
)
def test_a_table_that_cant_run_is_refused(phases: list[Phase], words: str) -> None:
    with pytest.raises(ValueError, match=f"^{words}"):
        check(phases)


def test_each_phase_has_a_line_and_the_last_line_has_all_durations() -> None:
    phases = [phase("short"), phase("and-long"), phase("never")]
    spans = {"short": Span(0.0, 1.25), "and-long": Span(1.25, 62.25)}
    lines = report(phases, {"short": PASSED, "and-long": FAILED}, spans, 63.0).splitlines()
    assert lines == [
        "short         1.2 s  from     0.0 s on  passed",
        "and-long     61.0 s  from     1.2 s on  failed",
        "never     did not run",
        "CI failed in 63 s: short 1 s, and-long 61 s",
    ]


def test_it_passed_only_if_every_phase_did() -> None:
    phases = [phase("a"), phase("b")]
    spans = dict.fromkeys("ab", Span(0.0, 1.0))
    assert "CI passed in 2 s" in report(phases, {"a": PASSED, "b": PASSED}, spans, 2.0)
    assert "CI failed in 2 s" in report(phases, {"a": PASSED, "b": ENDED}, spans, 2.0)
    assert "CI failed in 2 s" in report(phases, {"a": PASSED}, spans, 2.0)


def test_the_table_of_ci_can_run_whole() -> None:
    check(PHASES)
    done: dict[str, Outcome] = {}
    while ready := startable(PHASES, (), done):
        done.update(dict.fromkeys((found.name for found in ready), PASSED))
    assert set(done) == {found.name for found in PHASES}


def test_ci_runs_the_test_command_that_the_readme_names() -> None:
    assert ("make", "test") in [found.command for found in PHASES]


def follows(name: str, other: str) -> bool:
    """Tell whether a phase of CI comes after another one, or after one that does."""
    after = next(found.after for found in PHASES if found.name == name)
    return other in after or any(follows(before, other) for before in after)


def test_whatever_uses_the_virtual_environment_waits_until_it_is_there() -> None:
    """`make` would build it in each phase, at the same time."""
    users = [found.name for found in PHASES if found.command[0] in ("make", ".venv/bin/python")]
    assert [name for name in users if not follows(name, "venv")] == ["venv"]


def test_each_framework_loses_ranks_in_ci_once_all_of_them_are_installed_in_the_background() -> None:
    (smoke,) = (found for found in PHASES if found.command == ("make", "frameworks", "SMOKE=1"))
    assert "install-frameworks" in smoke.after
    assert [found.background for found in PHASES if found.name == "install-frameworks"] == [True]


def test_phases_that_train_never_run_at_once() -> None:
    """Each of them keeps both cores busy."""
    assert follows("frameworks", "test")
    assert follows("e2e", "frameworks")


def test_the_cluster_is_taken_down_in_any_case() -> None:
    assert [found.command[-1] for found in PHASES if found.cleanup] == ["down"]
