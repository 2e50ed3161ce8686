"""What a rank prints of the exception that ends it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

RUN = """
import sys
from trainmaster.rank import script_runner
raise SystemExit(script_runner.run({"kind": "script", "path": sys.argv[1], "args": []}))
"""


def printed(program: Path) -> str:
    ended = subprocess.run([sys.executable, "-c", RUN, program], stderr=subprocess.PIPE, text=True, timeout=60)
    assert ended.returncode == 1, ended.stderr
    return ended.stderr


def test_an_error_in_a_programs_syntax_is_printed_as_the_interpreter_prints_it(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("for step in range(3) ::\n")
    interpreter = subprocess.run([sys.executable, program], stderr=subprocess.PIPE, text=True, timeout=60)
    assert printed(program) == interpreter.stderr


def test_an_exception_is_printed_from_the_programs_first_frame_on(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("import json\njson.loads('[')\n")
    lines = printed(program).splitlines()
    assert lines[:2] == ["Traceback (most recent call last):", f'  File "{program}", line 2, in <module>']


def test_an_error_in_the_syntax_of_a_module_names_where_it_is_imported(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("x = = 1\n")
    program = tmp_path / "train.py"
    program.write_text("import broken\n")
    lines = printed(program).splitlines()
    assert lines[:2] == ["Traceback (most recent call last):", f'  File "{program}", line 1, in <module>']
    assert lines[-1] == "SyntaxError: invalid syntax"
