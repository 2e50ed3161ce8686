"""What the pages show can be given, is understood and is there; `tests/e2e/test_pages.py` runs the commands."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs import fragments, snippets, spoken
from tests.docs.blocks import ROOT, Block, Command, all_blocks, named_tests, pages, prose
from tests.docs.sessions import sessions
from tests.docs.stages import STAGES

BLOCKS = all_blocks()
TEXTS = {page: (ROOT / page).read_text() for page in pages()}
LANGUAGES = {"", "console", "yaml", "python"}


def of(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language]


def named(block: Block) -> str:
    """A name that stays when lines are added above: the block's page, language and number among its like there."""
    alike = [other for other in of(block.language) if other.page == block.page]
    return f"{block.page}:{block.language or 'text'}-{alike.index(block) + 1}"


def mentions(page: str) -> list[str]:
    """The pieces of code in a page's sentences."""
    return [" ".join(span.split()) for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose(TEXTS[page]))]


def test_the_pages_that_people_read_are_looked_at() -> None:
    assert {"README.md", "CONTRIBUTING.md", "charts/trainmaster/README.md", "docs/planning.md"} <= set(TEXTS)
    assert {block.language for block in BLOCKS} == LANGUAGES


def test_every_command_of_a_block_can_be_given() -> None:
    wrong = [
        f"{block.where}: `{command.text}`: {problem}"
        for block in BLOCKS
        for command in block.commands
        for problem in spoken.problems(command.words)
    ]
    assert wrong == []


def test_every_command_and_option_in_a_sentence_exists() -> None:
    wrong = [
        f"{page}: `{span}`: {problem}"
        for page in TEXTS
        for span in mentions(page)
        for problem in spoken.problems_of_a_mention(span)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("trainmaster plan job.yaml --rank-count 8", "trainmaster plan: --rank-count is unknown"),
        ("trainmaster plam job.yaml", "plam is unknown; did you mean plan?"),
        ("trainmaster run", "the following arguments are required: job.yaml"),
        ("make tests", "the Makefile has no target tests"),
        ("make soak SCHEDULE=3", "the Makefile has no variable SCHEDULE"),
        ("python -m benchmarks.recover", "there is no module benchmarks.recover"),
        ("python -m benchmarks.recovery --rank 3", "benchmarks.recovery has no option --rank"),
        ("python -m simulation replays x", "invalid choice: 'replays'"),
        ("kubectl apply -f manifests/instal.yaml", "there is no manifests/instal.yaml"),
        ("helm install x charts/trainmastr", "there is no charts/trainmastr"),
        ("trainmastr run job.yaml", "is no program"),
    ],
)
def test_a_command_that_cannot_be_given_is_told(words: str, problem: str) -> None:
    assert [told for told in spoken.problems(words.split()) if problem in told]


@pytest.mark.parametrize(
    "span",
    ["trainmaster plam", "trainmaster run --faults x", "make demos", "--no-such-option N", "-f charts/x", "tests/x"],
)
def test_a_mention_of_what_is_not_there_is_told(span: str) -> None:
    assert [*spoken.problems_of_a_mention(span)]


@pytest.mark.parametrize("block", of("yaml"), ids=named)
def test_a_job_or_a_part_of_one_is_valid(block: Block) -> None:
    wrong = fragments.problems_of_block(block.text)
    if block.has("illustrative"):
        assert wrong, f"{block.where} is valid: the mark `illustrative` no longer applies"
    else:
        assert wrong == []


@pytest.mark.parametrize("block", of("yaml"), ids=named)
def test_a_job_that_is_shown_asks_for_as_many_gpus_as_its_ranks_use(block: Block) -> None:
    if not block.has("illustrative"):
        assert fragments.warnings_of_block(block.text) == []


def test_an_object_of_kubernetes_that_is_not_valid_is_told() -> None:
    claim = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: a}\nspec: {accessMode: []}\n"
    assert fragments.problems_of_block(claim)
    assert fragments.problems_of_block("apiVersion: karpenter.sh/v1\nkind: NodePool\n")


def test_a_shown_job_with_gpus_that_its_ranks_leave_unused_is_told() -> None:
    template = "template: {spec: {containers: [{name: a, resources: {limits: {nvidia.com/gpu: 8}}}]}}"
    assert fragments.warnings_of_block("workers: {replicas: 1, " + template + "}")


def test_a_part_of_a_job_that_is_not_valid_is_told() -> None:
    assert fragments.problems(fragments.complete({"training": {"precision": "bf17"}}))
    with pytest.raises(ValueError, match="neither a DistributedTrainingJob nor a part of its spec"):
        fragments.complete({"precision": "bf16"})


@pytest.mark.processes
@pytest.mark.parametrize("block", of("python"), ids=named)
def test_python_runs_or_at_least_calls_what_there_is(block: Block) -> None:
    assert snippets.wrong_calls(block.text) == []
    before = STAGES[f"{block.page}:{block.session}"].before if block.session else ""
    failed = snippets.run(before + block.text)
    if block.has("illustrative"):
        assert failed, f"{block.where} runs: the mark `illustrative` no longer applies"
    else:
        assert failed == ""


@pytest.mark.parametrize("block", of(""), ids=named)
def test_what_is_shown_without_a_command_says_where_it_comes_from(block: Block) -> None:
    kinds = [kind for kind in ("source", "illustrative") if block.has(kind)]
    assert len(kinds) == 1, f"{block.where}: a mark `source` or `illustrative` is needed"


def test_what_is_shown_and_not_run_is_said_by_a_module() -> None:
    wrong = []
    for block in BLOCKS:
        shown = "\n".join(line for command in block.commands for line in command.output) or block.text
        for value in block.values("source"):
            files, _, names = value.partition("; with ")
            wrong += [f"{block.where}: {why}" for why in unsaid(shown, [ROOT / file for file in files.split()], names)]
        for command, _ in block.marked("long"):
            if command.output and not block.has("source"):
                wrong.append(f"{block.where}: a mark `source` of the output of `{command.text}` is missing")
    assert wrong == []


def unsaid(shown: str, sources: list[Path], names: str) -> Iterator[str]:
    """What speaks against it that these modules or packages put `shown` together. `names`: words that a job has."""
    files = [file for source in sources for file in ([source] if source.is_file() else source.rglob("*.py"))]
    texts = [text for file in files for text in _texts(file)]
    told, known = " ".join(shown.split()), words_of(" ".join(piece for text in texts for piece in text))
    if not any(len(words_of(" ".join(text))) >= 2 and has_in_order(told, text) for text in texts):
        yield "no text of these modules is in it"
    left_out = set(names.split(", ")) if names else set()
    yield from (f"no text of these modules has the word {word}" for word in words_of(told) - known - left_out)
    yield from (f"`with {name}` no longer applies" for name in left_out - (words_of(told) - known))


def words_of(text: str) -> set[str]:
    return set(re.findall(r"[A-Za-z]{3,}", text))


def has_in_order(told: str, pieces: list[str]) -> bool:
    end = 0
    for piece in pieces:
        begin = told.find(piece, end)
        if begin < 0:
            return False
        end = begin + len(piece)
    return True


def _texts(source: Path) -> Iterator[list[str]]:
    """The fixed pieces of each text in a module, docstrings left out."""
    nodes = [*ast.walk(ast.parse(source.read_text()))]
    passed = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    passed |= {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if id(node) not in passed:
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            fixed = [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
            yield [" ".join(piece.split()) for piece in fixed]


def test_words_that_a_module_does_not_say_are_told_from_those_it_says(tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    text = 'f"micro-batch: {n} sequences, an "\\\n        f"estimated {n}"'
    source.write_text(f'"""The device."""\ndef told(n):\n    return {text}\n')
    assert [*unsaid("micro-batch: 8 sequences, an estimated 3 GiB", [source], "GiB")] == []
    assert [*unsaid("micro-batch: 8 samples, an estimated 3", [source], "")] == [
        "no text of these modules is in it",
        "no text of these modules has the word samples",
    ]
    assert [*unsaid("micro-batch: 8 sequences, an estimated device", [source], "GiB")] == [
        "no text of these modules has the word device",
        "`with GiB` no longer applies",
    ]


def test_every_long_command_is_run_by_a_test_or_a_file_that_is_named() -> None:
    known, wrong = named_tests(), []
    for block in BLOCKS:
        for command, value in block.marked("long"):
            by = re.search(r"; (tested|run) by (\S+)$", value)
            if by is None:
                wrong.append(f"{block.where}: `long: {value}` doesn't end with `; tested by TEST` or `; run by FILE`")
            elif by[1] == "tested" and by[2] not in known:
                wrong.append(f"{block.where}: there is no test {by[2]}")
            elif by[1] == "run" and not is_run_by(command, ROOT / by[2]):
                wrong.append(f"{block.where}: {by[2]} doesn't run `{command.text}`")
    assert wrong == []


def is_run_by(command: Command, file: Path) -> bool:
    """Whether a file has the words of a command, be it in a line of a shell or as texts of Python."""
    words = " ".join(re.findall(r"[\w./=-]+", file.read_text() if file.is_file() else ""))
    return f" {' '.join(command.words)} " in f" {words} "


def test_every_mark_still_applies() -> None:
    wrong = []
    for block in BLOCKS:
        for kind in ("cluster", "long"):
            for value in block.values(kind):
                if not any(mark == value for _, mark in block.marked(kind)):
                    wrong.append(f"{block.where}: no command begins with the words of `{kind}: {value}`")
        for command, _ in block.marked("cluster"):
            if not needs_a_cluster(command.words):
                wrong.append(f"{block.where}: `{command.text}` needs no cluster")
        for command in block.runnable:
            if needs_a_cluster(command.words):
                wrong.append(f"{block.where}: `{command.text}` needs a cluster and has no mark `cluster`")
        if block.has("exact") and not any(re.search(r"\d", line) for line in block.text.splitlines()):
            wrong.append(f"{block.where}: nothing is shown that `exact` could be about")
        if block.session and not (block.runnable or block.has("file") or block.language == "python"):
            wrong.append(f"{block.where}: nothing of the session {block.session} runs here")
    assert wrong == []


def needs_a_cluster(words: list[str]) -> bool:
    if words[0] in ("kubectl", "helm"):
        return True
    verb = words[1] if words[0] == "trainmaster" else ""
    with_a_folder = verb in ("status", "profile", "logs", "report") and any(word.startswith("runs/") for word in words)
    return verb in ("submit", "logs", "fault", "status", "profile", "restart", "delete") and not with_a_folder


def test_every_stage_belongs_to_a_session_of_a_page() -> None:
    python = {f"{block.page}:{block.session}" for block in of("python") if block.session}
    assert set(STAGES) <= {*sessions(), *python}
