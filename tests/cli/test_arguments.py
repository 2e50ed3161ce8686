"""A command line that can't be understood is refused in one sentence, which names the command and what was meant."""

from __future__ import annotations

import pytest

from trainmaster_operator.cli.main import main


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("rum job.yaml", "trainmaster: rum is unknown; did you mean run?"),
        ("compute job.yaml", "trainmaster: compute is unknown; trainmaster --help lists the commands and options"),
        ("watch my-gpt", "trainmaster: there is no command watch any more; use trainmaster status NAME --watch"),
        ("--verbose run job.yaml", "trainmaster: --verbose is unknown; did you mean --version?"),
        ("run job.yaml --faults kill:rank=1", "trainmaster run: --faults is unknown; did you mean --fault?"),
        ("run job.yaml --frsh", "trainmaster run: --frsh is unknown; did you mean --fresh?"),
        ("run job.yaml --outt=x", "trainmaster run: --outt is unknown; did you mean --out?"),
        (
            "status runs/x -q",
            "trainmaster status: -q is unknown; trainmaster status --help lists the commands and options",
        ),
        (
            "run a.yaml b.yaml",
            "trainmaster run: there is no place for the argument b.yaml; trainmaster run --help lists",
        ),
        ("run", "trainmaster run: the following arguments are required: job.yaml; trainmaster run --help lists"),
        ("run a.yaml --port x", "trainmaster run: argument --port: invalid int value: 'x'; trainmaster run --help"),
    ],
)
def test_a_command_line_that_is_not_understood_is_refused_in_one_sentence(
    line: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    (told,) = err.splitlines()
    assert told.startswith(sentence)
