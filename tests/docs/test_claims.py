"""What README and docs claim has a command that shows it, and `make claims` tells what came of each."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path

import pytest

from claims import __main__ as command
from claims import showing
from claims.listed import CLAIMS, Claim, Printed, Samples
from tests.docs import spoken
from tests.docs.blocks import ROOT, named_tests, pages, read
from tests.docs.sessions import sessions

README = (ROOT / "README.md").read_text()
_FIGURE = re.compile(r"\d ?(?:%|GB|MB|GiB|s|ms|seconds|times)(?!\w)")


def marked_names(text: str, page: str = "README.md") -> list[str]:
    return [name for mark in read(text, page)[1] for name in mark.value.split(", ")]


def figures_without_claim(text: str) -> list[str]:
    """The paragraphs with figures that have no mark above them."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    # What a benchmark wrote belongs to the paragraph before it.
    written = re.compile(r"\n\n(<!-- benchmarks\.pages: .*?^<!-- end -->)$", re.DOTALL | re.MULTILINE)
    text = written.sub(lambda found: "\n" + found[1].replace("\n\n", "\n"), text)
    paragraphs = re.split(r"\n\n", text)
    return [
        paragraph
        for before, paragraph in zip(["", *paragraphs], paragraphs, strict=False)
        if _FIGURE.search(paragraph)
        and "<!-- claim: " not in paragraph
        # A table belongs to the paragraph before it.
        and not (paragraph.startswith("|") and "<!-- claim: " in before)
    ]


def test_every_claim_of_a_page_has_a_command_and_every_command_one_claim() -> None:
    named = [name for page in pages() for name in marked_names((ROOT / page).read_text(), page)]
    assert sorted(named) == sorted(claim.name for claim in CLAIMS)


def test_every_figure_of_the_readme_is_claimed() -> None:
    assert figures_without_claim(README) == []


def test_a_figure_without_a_claim_is_told() -> None:
    text = "<!-- claim: a -->\nIt takes 3 s:\n\n| x |\n| 4 s |\n\nIt keeps 99 % of it."
    assert figures_without_claim(text) == ["It keeps 99 % of it."]
    written = "It takes this:\n\n<!-- benchmarks.pages: a -->\n| 4 s |\n\nBy 3 %.\n<!-- end -->\n\nMore."
    assert figures_without_claim(f"<!-- claim: a -->\n{written}") == []
    assert len(figures_without_claim(written)) == 1
    assert marked_names(text) == ["a"]


def test_claims_have_names_of_their_own() -> None:
    assert len({claim.name for claim in CLAIMS}) == len(CLAIMS)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_every_command_can_be_given(claim: Claim) -> None:
    words = claim.command.replace("'", "").split()
    if words[0] != "du":
        assert [*spoken.problems(words)] == []


def test_what_a_command_chooses_among_tests_is_there() -> None:
    names = {*named_tests(), *sessions()}
    for claim in CLAIMS:
        for word in re.findall(r"-k ([\w-]+)", claim.command):
            assert [name for name in names if word in name], f"{claim.name}: no test has {word} in its name"


@pytest.mark.parametrize(
    "figure",
    [figure for claim in CLAIMS for figure in claim.figures if isinstance(figure, Samples)],
    ids=lambda figure: f"{figure.file}, {figure.case}, {figure.system}",
)
def test_figures_are_read_where_the_benchmark_writes_them(figure: Samples) -> None:
    figures, _ = figure.read(ROOT, "")
    assert all(number > 0 for number in figures)


def shown(folder: Path, claim: Claim, with_cluster: bool = False) -> showing.Shown:
    return showing.show(claim, folder, with_cluster)


def test_a_claim_holds_if_its_command_succeeds(tmp_path: Path) -> None:
    good, bad = Claim("good", "Yes.", "true"), Claim("bad", "No.", "echo the reason; exit 3")
    told = [shown(tmp_path, claim) for claim in (good, bad)]
    assert [one.holds for one in told] == [True, False]
    assert told[1].result == "DOES NOT HOLD (exit code 3): the reason"
    assert showing.exit_code(told[:1]) == 0
    assert showing.exit_code(told) == 1


def test_a_claim_with_figures_is_told_as_a_range_and_never_fails(tmp_path: Path) -> None:
    measured = Claim("size", "How much.", "echo 17; exit 1", (Printed("MB"),))
    missing = Claim("speed", "How fast.", "true", (Samples("none", "a", "b"),))
    told = [shown(tmp_path, claim) for claim in (measured, missing)]
    assert told[0].result == "17 MB"
    assert told[1].result.startswith("not measured: ")
    assert showing.exit_code(told) == 0
    assert showing.in_words([0.25, 0.21, 1500.4], "s") == "0.21 to 1500 s (3 samples)"
    assert "speed: How fast." in showing.table(told)


def test_samples_that_were_there_before_the_command_are_not_taken_for_its_own(tmp_path: Path) -> None:
    """A fresh clone has those that are committed."""
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    samples = '{"cases": [{"case": "a", "system": "b", "samples": [4], "unit": "s"}]}'
    (results / "speed.json").write_text(samples)
    failing = Claim("speed", "How fast.", "exit 3", (Samples("speed", "a", "b"),))
    assert shown(tmp_path, failing).result == "not measured: the command has not written speed.json (exit code 3)"
    writing = Claim("speed", "How fast.", f"echo '{samples}' > benchmarks/results/speed.json", failing.figures)
    assert shown(tmp_path, writing).result == "4 s"


def test_figures_are_read_behind_the_name_of_their_system(tmp_path: Path) -> None:
    lines = "4 ranks  trainmaster  0.223 0.310\n4 ranks  torchrun, best  4.500\n4 ranks  trainmaster  0.125  12\n"
    assert Printed("s", " trainmaster ", r"\d+\.\d{3}").read(tmp_path, lines) == ([0.223, 0.31, 0.125], "s")
    assert Printed("s", "best ", r"\d+\.\d{3}").read(tmp_path, lines) == ([4.5], "s")
    with pytest.raises(LookupError):
        Printed("s", "JobSet").read(tmp_path, lines)


def test_commands_run_where_the_set_up_is_activated(tmp_path: Path) -> None:
    binaries = tmp_path / ".venv" / "bin"
    binaries.mkdir(parents=True)
    (binaries / "activate").write_text("ACTIVATED=yes")
    assert shown(tmp_path, Claim("active", "Yes.", '[ "$ACTIVATED" = yes ]')).holds


def test_what_needs_a_cluster_is_left_out_without_one(tmp_path: Path) -> None:
    claim = Claim("cluster", "There.", "touch ran", needs_cluster=True)
    assert shown(tmp_path, claim).holds is None
    assert not (tmp_path / "ran").exists()
    assert shown(tmp_path, claim, with_cluster=True).holds


@pytest.mark.parametrize(
    ("here", "names"), [(["--here"], ["order", "parity"]), ([], ["set-up", "order", "parity"])], ids=["here", "clone"]
)
def test_the_chosen_claims_are_shown_after_the_set_up_of_a_fresh_clone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], here: list[str], names: list[str]
) -> None:
    places = []

    def shown(claim: Claim, clone: Path, *_: object) -> showing.Shown:
        places.append(clone)
        return showing.Shown(claim, claim.name != "parity", f"{claim.name} was shown")

    monkeypatch.setattr(showing, "show", shown)
    monkeypatch.setattr(command, "_fresh_clone", lambda: nullcontext(Path("clone")))
    assert command.main(["--only", "parity", "order", *here]) == 1
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("    ") and "shown" in line] == [
        f"    {name} was shown" for name in names
    ]
    assert set(places) == {ROOT if here else Path("clone")}


def test_a_claim_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--only", "speed"]) == 2
    assert capsys.readouterr().err.startswith("--only speed: there are set-up, size, demo, ")
