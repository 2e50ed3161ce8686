"""A program that ranks run does what it does under `python`: executed in the first round, forked after it."""

from __future__ import annotations

import gzip
import json
import os
import py_compile
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from trainmaster.contract.wire import Cause, ExitCode, ProgressRecord, environment
from trainmaster.contract.wire.progress_record import MAGIC, VERSION
from trainmaster.rank import executed_rank, failure_message, script_observer, script_runner

pytestmark = pytest.mark.processes

FINDS_ITSELF = """
import inspect, os, sys
def f(): return 1
os.chdir("/")
print(__file__, __loader__.name, sys.argv, sys.path[0], inspect.getsource(f))
"""
NAMES = "print(sorted(name for name in globals() if not name.startswith('_')), __spec__.name, __package__)"
OWN_HOOK = """
import atexit, sys
atexit.register(print, "at the end")
sys.excepthook = lambda kind, error, frames: print("the tracker heard", kind, error, frames.tb_frame.f_code.co_filename)
raise ValueError("too large")
"""
HOOK_THAT_ENDS = """
import sys
def hook(*_): sys.exit(7)
sys.excepthook = hook
1 / 0
"""
STARTS_ITSELF_AGAIN = """
import os, sys
if os.environ.setdefault("AGAIN", "no") == "no":
    os.environ["AGAIN"] = "yes"
    os.execv(sys.orig_argv[0], sys.orig_argv)
print("again", sys.argv, sys.orig_argv[-2:])
"""
BROKEN_HOOK = "import sys\nsys.excepthook = lambda *_: nothing\nraise ValueError('too large')\n"
TORCH = """
import sys
class ProcessGroup: ...
class Work:
    def wait(self): ...
def init_process_group():
    sys.excepthook = lambda *words: print("[rank0]:", words)
"""
"""What torch's module of this name does to tracebacks."""
WATCHED = """
import os, sys
from trainmaster.rank import script_runner
from trainmaster.contract.wire import ProgressRecord, environment
from trainmaster.contract.wire.channel import Channel
record, (channel, _) = ProgressRecord.create(1, 0), Channel.pair()
os.environ.update({environment.PROGRESS_FD: str(record.fd), environment.CHANNEL_FD: str(channel.fileno())})
sys.exit(script_runner.run({"kind": "script", "path": "train.py", "args": []}))
"""
"""Runs train.py as a rank whose steps and imports are seen."""
PROGRAMS = {"finds.py": FINDS_ITSELF, "names.py": NAMES, "hook.py": OWN_HOOK, "ends.py": HOOK_THAT_ENDS}
PROGRAMS |= {"again.py": STARTS_ITSELF_AGAIN}

AGAIN = [["again.py", "--x"], ["-m", "again", "-c"], ["-c", STARTS_ITSELF_AGAIN, "x"]]


def entry(words: list[str]) -> dict[str, Any]:
    if words[0] == "-c":
        return {"kind": "code", "code": words[1], "args": words[2:]}
    if words[0] == "-m":
        return {"kind": "module", "name": words[1], "args": words[2:]}
    return {"kind": "script", "path": words[0], "args": words[1:]}


def run(command: list[str], folder: Path, **variables: str) -> tuple[int, str]:
    """(the exit code of a program, what it says)."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout


def run_as_rank(words: list[str], folder: Path) -> tuple[int, str]:
    command, variables = executed_rank.command(entry(words), [])
    return run(command, folder, **variables)


def run_forked(words: list[str], folder: Path, **variables: str) -> tuple[int, str]:
    """As a rank that is forked from a zygote, which was started in another folder and with other variables."""
    code = f"""
import json, multiprocessing.process, os, sys, tempfile, time
tempfile.gettempdir(), time.tzset()
os.environ.update({variables!r})
os.chdir({str(folder)!r})
from trainmaster.agent.zygote import child_setup as birth
birth.run(json.loads({json.dumps(entry(words))!r}))
"""
    return run([sys.executable, "-c", code], Path("/"), TZ="UTC", TMPDIR="/tmp")


@pytest.mark.parametrize("words", [["finds.py", "--x"], ["-m", "names"], ["hook.py"], ["ends.py"], *AGAIN])
def test_a_program_finds_what_it_finds_under_python(tmp_path: Path, words: list[str]) -> None:
    for name, source in PROGRAMS.items():
        (tmp_path / name).write_text(source)
    assert run_as_rank(words, tmp_path) == run([sys.executable, *words], tmp_path)


@pytest.mark.parametrize("words", AGAIN, ids=["script", "module", "code"])
def test_a_forked_program_can_start_itself_again(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "again.py").write_text(STARTS_ITSELF_AGAIN)
    assert run_forked(words, tmp_path) == run([sys.executable, *words], tmp_path)


def test_a_compiled_file_is_a_program(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys; print(__file__, sys.argv, type(__loader__), __name__)")
    py_compile.compile(str(tmp_path / "train.py"), str(tmp_path / "train.pyc"))
    code, said = run_as_rank(["train.pyc", "--x"], tmp_path)
    assert (code, said) == run([sys.executable, "train.pyc", "--x"], tmp_path)
    assert code == 0, said


def test_a_program_may_name_the_arguments_of_execve(tmp_path: Path) -> None:
    code = "import os, sys; os.execve(path=sys.executable, argv=['python', '-c', 'print(1)'], env=os.environ)"
    record = ProgressRecord.create(1, 0)
    command, variables = executed_rank.command(entry(["-c", code]), [])
    env = {**os.environ, **variables, environment.PROGRESS_FD: str(record.fd)}
    done = subprocess.run(command, cwd=tmp_path, env=env, pass_fds=[record.fd], capture_output=True, text=True)
    record.close()
    assert done.stdout == "1\n", done.stderr


def test_a_folder_and_an_archive_with_a_main_are_programs(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__main__.py").write_text(f"import mine\n{NAMES}")
    (tmp_path / "app" / "mine.py").write_text("print('mine', __file__)")
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
        for name in ("__main__.py", "mine.py"):
            archive.write(tmp_path / "app" / name, name)
    for name in ("app", "app.zip"):
        code, said = run_as_rank([name], tmp_path)
        assert (code, said) == run([sys.executable, name], tmp_path)
        assert code == 0, said


def test_a_broken_hook_does_not_hide_what_has_failed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BROKEN_HOOK)
    code, said = run_as_rank(["train.py"], tmp_path)
    assert code == 1
    assert "Error in sys.excepthook:" in said
    assert "NameError: name 'nothing' is not defined" in said
    assert said.endswith("ValueError: too large\n")


def test_a_forked_program_forgets_where_the_zygote_was_started(tmp_path: Path) -> None:
    source = "import tempfile, time; print(tempfile.gettempdir(), time.strftime('%H', time.localtime(0)))"
    (tmp_path / "train.py").write_text(source)
    code, said = run_forked(["train.py"], tmp_path, TMPDIR=str(tmp_path), TZ="UTC-3")
    assert (code, said) == (0, f"{tmp_path} 03\n")


def test_a_forked_program_loses_nothing_that_it_wrote_to_files_which_it_left_open(tmp_path: Path) -> None:
    """The interpreter closes them when it ends, and also after an exception."""
    source = "import gzip\nplain, text = open('plain.txt', 'w'), gzip.open('text.gz', 'wt')\n"
    source += "class Log(gzip.GzipFile): pass\nbinary = Log('binary.gz', 'wb')\n"
    source += "for file in (plain, text): file.write('the last line')\n"
    source += "binary.write(b'the last line')\nraise ValueError('ends')\n"
    (tmp_path / "train.py").write_text(source)
    code, said = run_forked(["train.py"], tmp_path)
    assert (code, said.splitlines()[-1]) == (1, "ValueError: ends")
    assert (tmp_path / "plain.txt").read_text() == "the last line"
    for name in ("text.gz", "binary.gz"):
        assert gzip.decompress((tmp_path / name).read_bytes()) == b"the last line", name


@pytest.mark.parametrize("end", ["", "raise ValueError('ends')\n"])
def test_an_archive_that_a_forked_program_leaves_open_can_be_read(tmp_path: Path, end: str) -> None:
    """The interpreter closes it when it ends."""
    source = "import zipfile\narchive = zipfile.ZipFile('all.zip', 'w')\narchive.writestr('step', '7')\n"
    source += "read = zipfile.ZipFile('old.zip')\n"
    (tmp_path / "train.py").write_text(source + end)
    with zipfile.ZipFile(tmp_path / "old.zip", "w") as old:
        old.writestr("step", "6")
    code, _ = run_forked(["train.py"], tmp_path)
    assert code == (1 if end else 0)
    with zipfile.ZipFile(tmp_path / "all.zip") as archive:
        assert archive.read("step") == b"7"


def test_processes_that_a_forked_program_spawns_find_its_modules(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def met(): print('met', flush=True)\n")
    code = "import mine, multiprocessing\n"
    code += "p = multiprocessing.get_context('spawn').Process(target=mine.met); p.start(); p.join()\n"
    assert run_forked(["-c", code], tmp_path) == (0, "met\n")


def test_the_rank_stands_once_before_each_line_of_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "torch" / "distributed").mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "torch" / "distributed" / "__init__.py").touch()
    (tmp_path / "torch" / "distributed" / "distributed_c10d.py").write_text(TORCH)
    source = (
        "import torch.distributed.distributed_c10d as c10d\nc10d.init_process_group()\nraise ValueError('too large')\n"
    )
    (tmp_path / "train.py").write_text(source)
    code, said = run([sys.executable, "-c", WATCHED], tmp_path)
    assert code == 1
    assert said.splitlines()[-1] == "ValueError: too large"


def test_an_error_of_what_watches_a_program_is_told_as_its_last_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def install(*, own_loop: bool) -> None:
        raise ValueError("there is no such descriptor")

    told: list[str] = []
    monkeypatch.setattr(script_observer, "install", install)
    monkeypatch.setattr(failure_message, "tell", lambda cause, message, *_, **__: told.append(message))
    assert script_runner.run({"kind": "code", "code": "raise AssertionError('it runs')", "args": []}) == 1
    assert told == ["ValueError: there is no such descriptor"]
    assert told[0] in capsys.readouterr().err


def test_a_rank_whose_agent_is_of_another_version_ends_with_a_sentence_and_runs_no_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = ProgressRecord.create(1, 0)
    os.pwrite(record.fd, struct.pack("<II", MAGIC, VERSION + 1), 0)
    monkeypatch.setenv(environment.PROGRESS_FD, str(record.fd))
    told: list[tuple[str, ...]] = []
    monkeypatch.setattr(failure_message, "tell", lambda *words, **_: told.append(words))
    assert (
        script_runner.run({"kind": "code", "code": "raise AssertionError('it runs')", "args": []})
        == ExitCode.CONFIG_ERROR
    )
    said = capsys.readouterr().err
    assert said.startswith(f"trainmaster: the agent's progress record has layout {VERSION + 1}, and the trainmaster")
    assert said.count("\n") == 1
    assert told == [(Cause.CONFIG_ERROR, said.removeprefix("trainmaster: ").rstrip(), "")]
    record.close()
