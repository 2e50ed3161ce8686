"""Ranks that are executed as they are, whatever starts their Python, are watched all the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agent.world import ROOT, World
from trainmaster.agent.frameworks.framework import Facts, numbers
from trainmaster.contract.wire import RankState, Recurrence, environment
from trainmaster.contract.wire.channel import Channel
from trainmaster.contract.wire.progress_record import ProgressRecord
from trainmaster.rank import executed_rank_observation

STEPS = """
import os, signal, subprocess, sys
from torch.optim import optimizer
if os.fork() == 0:
    [optimizer.step() for _ in range(9)]
    os._exit(0)
os.wait()
subprocess.run([sys.executable, "-c", "from torch.optim import optimizer as o; [o.step() for _ in range(9)]"])
for _ in range(4):
    optimizer.step()
print("stepped", flush=True)
signal.pause()
"""

OPTIMIZER = """
hooks = []
register_optimizer_step_pre_hook = lambda hook: hooks.insert(0, hook)
register_optimizer_step_post_hook = hooks.append
class Optimizer:
    state, param_groups = {}, []
def step():
    for hook in hooks:
        hook(Optimizer, (), {})
"""


def torch_of(folder: Path) -> Path:
    """A folder with as much of torch as the observer looks at."""
    package = folder / "with-torch" / "torch"
    (package / "optim").mkdir(parents=True)
    cuda = "class cuda:\n    is_initialized = staticmethod(lambda: False)\n"
    (package / "__init__.py").write_text(cuda)
    (package / "optim" / "__init__.py").touch()
    (package / "optim" / "optimizer.py").write_text(OPTIMIZER)
    return package.parent


def executable(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


WRAPPER = """
import subprocess, sys
subprocess.run(["true"])
subprocess.Popen([sys.executable, *sys.argv[1:]]).wait()
"""

COMMANDS: dict[str, Callable[[Path, str], list[str]]] = {
    "another environment's python": lambda folder, script: [str(_link(folder)), script],
    "a shell script": lambda folder, script: [
        executable(folder / "run.sh", f"#!/bin/sh\nexec {sys.executable} {script}\n")
    ],
    "a shebang": lambda folder, script: [
        executable(folder / "run.py", f"#!{sys.executable}\n" + Path(script).read_text())
    ],
    "env": lambda folder, script: ["env", "X=1", sys.executable, script],
    "a Python wrapper": lambda folder, script: [
        "bash",
        "-c",
        f"true; {sys.executable} -c '{WRAPPER}' {script}; exit 0",
    ],
    "bash -c": lambda folder, script: ["bash", "-c", f"{sys.executable} -c pass; {sys.executable} {script}; exit 0"],
}


def _link(folder: Path) -> Path:
    """An interpreter in a folder of its own."""
    (folder / "other" / "bin").mkdir(parents=True)
    link = folder / "other" / "bin" / "python"
    link.symlink_to(Path(sys.executable).resolve())
    return link


@pytest.mark.processes
@pytest.mark.parametrize("name", COMMANDS)
def test_steps_are_seen_whatever_started_the_python_that_takes_them(
    make_world: Callable[..., World], name: str
) -> None:
    """Its children take more steps, which are not the rank's."""
    world = make_world()
    path = os.pathsep.join([str(torch_of(world.folder)), str(ROOT / "trainer")])
    command = COMMANDS[name](world.folder, world.script(STEPS))
    world.start(command, TRAINMASTER_ZYGOTE_ENABLED="0", PYTHONPATH=path)
    world.until(lambda: "[rank 0] stepped" in world.log())
    report = world.operator.wait_for_step(4, round=1)
    assert report.ranks[0].step == 4


WORKER_STARTS_PROGRAMS = """
import os, signal, subprocess
helper = subprocess.Popen(["sleep", "60"])
end, begin = os.pipe()
worker = os.fork()
if worker == 0:
    subprocess.run(["true"])
    os.write(begin, b"x")
    signal.pause()
os.read(end, 1)
from torch.optim import optimizer
for _ in range(4):
    optimizer.step()
os.kill(worker, signal.SIGKILL)
helper.kill()
"""


@pytest.mark.processes
def test_a_forked_worker_that_starts_programs_does_not_take_the_record_of_its_rank(tmp_path: Path) -> None:
    """The rank has given way to a helper that still runs, so nobody else holds the record."""
    path = os.pathsep.join([str(torch_of(tmp_path)), str(ROOT / "trainer")])
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": path, environment.ROUND: "1", "RANK": "0"}
    record = ProgressRecord.create(1, 0)
    env |= {environment.PROGRESS_FD: str(record.fd), **executed_rank_observation.variables(env)}
    argv = [sys.executable, "-c", WORKER_STARTS_PROGRAMS]
    subprocess.run(argv, env=env, pass_fds=[record.fd], timeout=60, check=True)
    assert record.read().step == 4
    record.close()


ROUNDS = """
from xgboost import callback
container = callback.CallbackContainer()
for epoch in range(4):
    container.after_iteration(None, epoch)
"""

CALLBACK = """
class CallbackContainer:
    def after_iteration(self, model, epoch): ...
"""


@pytest.mark.processes
def test_the_steps_of_a_jobs_framework_are_seen_below_a_wrapper_in_python(tmp_path: Path) -> None:
    """Such as conda run, which closes what it has inherited."""
    package = tmp_path / "xgboost"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "callback.py").write_text(CALLBACK)
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT / "trainer")])}
    env |= {**numbers(Facts(0, 1)), environment.FRAMEWORK: "XGBoost", environment.STORE: "127.0.0.1:1"}
    record = ProgressRecord.create(1, 0)
    env |= {environment.ROUND: "1", environment.PROGRESS_FD: str(record.fd)}
    argv = [sys.executable, "-c", WRAPPER, "-c", ROUNDS]
    env |= executed_rank_observation.variables(env)
    subprocess.run(argv, env=env, pass_fds=[record.fd], timeout=60, check=True)
    assert record.read().step == 4
    record.close()


AGAIN = """
import os, sys
if os.environ.get("PYTHONHASHSEED") != "7":
    os.environ["PYTHONHASHSEED"] = "7"
    os.execv(sys.executable, [sys.executable, *sys.argv])
"""


@pytest.mark.processes
def test_the_steps_of_a_script_that_executes_itself_again_are_seen(make_world: Callable[..., World]) -> None:
    world = make_world()
    path = os.pathsep.join([str(torch_of(world.folder)), str(ROOT / "trainer")])
    world.start([sys.executable, world.script(AGAIN + STEPS)], PYTHONPATH=path)
    world.until(lambda: "[rank 0] stepped" in world.log())
    world.operator.wait_for_step(4, round=1)


STUCK = """
import os, time
from torch.optim import optimizer
def exchange_halo():
    while True:
        time.sleep(3600)
optimizer.step()
print("process", os.getpid(), flush=True)
exchange_halo()
"""


@pytest.mark.processes
@pytest.mark.parametrize("name", ["bash -c", "a Python wrapper"])
def test_a_stuck_python_is_looked_at_and_not_what_started_it(make_world: Callable[..., World], name: str) -> None:
    """Its stack is asked of it, and the kernel is asked whether it is stopped."""
    world = make_world()
    path = os.pathsep.join([str(torch_of(world.folder)), str(ROOT / "trainer")])
    command = COMMANDS[name](world.folder, world.script(STUCK))
    world.start(command, TRAINMASTER_ZYGOTE_ENABLED="0", PYTHONPATH=path)
    operator = world.operator
    world.until(lambda: "[rank 0] process " in world.log())
    operator.direct(ask_stacks=True)
    operator.wait_for(lambda: any("exchange_halo" in rank.stack for rank in operator.reports[-1].ranks), "its stack")
    pid = int(world.log().partition("[rank 0] process ")[2].split()[0])
    assert pid != operator.reports[-1].ranks[0].pid
    os.kill(pid, signal.SIGSTOP)
    operator.wait_for(lambda: operator.reports[-1].ranks[0].state is RankState.STOPPED, "that it is stopped")


@pytest.mark.processes
def test_the_last_words_of_a_python_that_a_shell_started_are_told(make_world: Callable[..., World]) -> None:
    world = make_world(restarts=0)
    script = world.script("raise ArithmeticError('the answer is not 42')\n")
    world.start(["bash", "-c", f"{sys.executable} {script}"], **world.without_torch())
    verdict = world.operator.wait_for_verdict()
    assert verdict.message == "ArithmeticError: the answer is not 42"
    assert "line 1, in <module>" in verdict.traceback


@pytest.mark.processes
def test_a_python_that_fails_is_no_failure_of_a_shell_that_goes_on(make_world: Callable[..., World]) -> None:
    """It looks whether a module is there, as people do before they install it."""
    world = make_world()
    path = os.pathsep.join([str(torch_of(world.folder)), str(ROOT / "trainer")])
    probe = f"{sys.executable} -c 'import torch, missing'"
    command = ["bash", "-c", f"{probe} || echo goes on; {sys.executable} {world.script(STEPS)}; exit 0"]
    world.start(command, TRAINMASTER_ZYGOTE_ENABLED="0", PYTHONPATH=path)
    world.operator.wait_for_step(4, round=1)
    assert "[rank 0] goes on" in world.log()
    assert not any(report.verdict for report in world.operator.reports)


@pytest.mark.processes
@pytest.mark.parametrize("code", ["raise SystemExit(3)", "import missing"])
def test_a_shell_that_ends_well_after_a_python_that_fails_is_done(make_world: Callable[..., World], code: str) -> None:
    world = make_world()
    world.start(["bash", "-c", f"{sys.executable} {world.script(code)} || echo ignored"], **world.without_torch())
    assert world.wait() == 0
    assert not world.operator.verdicts


@pytest.mark.processes
def test_a_python_that_fails_in_a_pipeline_is_a_failure(make_world: Callable[..., World]) -> None:
    """The pipeline ends with the exit code of its last program."""
    world = make_world(restarts=0)
    script = world.script("raise ArithmeticError('the answer is not 42')\n")
    world.start(["bash", "-c", f"{sys.executable} {script} 2>&1 | tee log"], **world.without_torch())
    verdict = world.operator.wait_for_verdict()
    assert (verdict.message, verdict.exit_code) == ("ArithmeticError: the answer is not 42", 1)
    assert verdict.recurs is Recurrence.LIKELY


@pytest.mark.processes
def test_a_usage_error_in_a_pipeline_is_a_failure(make_world: Callable[..., World]) -> None:
    world = make_world(restarts=0)
    script = world.script("import sys\nprint('usage: no such option')\nsys.exit(2)\n")
    world.start(["bash", "-c", f"{sys.executable} {script} 2>&1 | tee log"], **world.without_torch())
    verdict = world.operator.wait_for_verdict()
    assert (verdict.exit_code, verdict.recurs) == (2, Recurrence.CERTAIN)


@pytest.mark.processes
def test_a_usage_error_of_a_python_that_a_shell_started_is_told_for_certain(make_world: Callable[..., World]) -> None:
    world = make_world(restarts=0)
    source = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--data', required=True)\np.parse_args()\n"
    world.start(["bash", "-c", f"true; {sys.executable} {world.script(source)}"], **world.without_torch())
    verdict = world.operator.wait_for_verdict()
    assert verdict.message.endswith("train.py: error: the following arguments are required: --data")
    assert (verdict.exit_code, verdict.recurs) == (2, Recurrence.CERTAIN)


def _run(folder: Path, code: str, *fds: int, **env: str) -> str:
    """What a Python below a rank prints."""
    variables = {"PATH": os.environ["PATH"], **env}
    variables |= executed_rank_observation.variables(variables)
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=variables, cwd=folder, pass_fds=fds, text=True, capture_output=True).stdout


def test_the_next_sitecustomize_runs_and_the_path_stays_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("value = 7\n")
    code = "import sys, sitecustomize as s; print(s.value, s.__file__, [p for p in sys.path if 'injected' in p])"
    assert _run(tmp_path, code, PYTHONPATH=str(tmp_path)).split() == ["7", str(tmp_path / "sitecustomize.py"), "[]"]


def test_a_python_without_another_sitecustomize_runs_as_ever(tmp_path: Path) -> None:
    code = "import sys; print('trainmaster' in sys.modules, 'sitecustomize' in sys.modules)"
    assert _run(tmp_path, code).split()[0] == "False"


def test_a_helper_that_does_not_train_is_not_watched_in_its_starters_place(
    tmp_path: Path,
) -> None:
    """It lives longer than the program needs to import torch."""
    record = ProgressRecord.create(1, 0)
    ours, theirs = Channel.pair()
    code = (
        "import subprocess, sys, trainmaster.rank.script_observer as o\n"
        "helper = subprocess.Popen([sys.executable, '-c', 'print(1, flush=True); input()'], stdin=-1, stdout=-1)\n"
        "helper.stdout.readline(); print(o._observer.yielded()); import torch; print(o._observer.yielded())\n"
        "helper.communicate(b'\\n')\n"
    )
    env = {environment.PROGRESS_FD: str(record.fd), environment.CHANNEL_FD: str(theirs.fileno())}
    env |= {environment.ROUND: "1", "RANK": "0", "PYTHONPATH": f"{torch_of(tmp_path)}:{ROOT / 'trainer'}"}
    try:
        assert _run(tmp_path, code, record.fd, theirs.fileno(), **env).split() == ["True", "False"]
    finally:
        record.close()
        ours.close()
        theirs.close()


@pytest.mark.parametrize(
    ("imports", "watched"),
    [("import torch", ["True", "False", "True"]), ("", ["True", "True", "True"])],
)
def test_a_program_gives_way_to_those_that_it_starts_before_it_imports_torch(
    tmp_path: Path, imports: str, watched: list[str]
) -> None:
    """Of several processes that have a record one is watched. Once they have ended, the first one is so again."""
    record = ProgressRecord.create(1, 0)
    ours, theirs = Channel.pair()
    child = "import torch; import trainmaster.rank.script_observer as o; print(o._observer is not None)"
    code = (
        "import subprocess, sys, trainmaster.rank.script_observer as o; print(o._observer is not None, flush=True)\n"
        f"{imports}\n"
        f"subprocess.run([sys.executable, '-c', {child!r}], close_fds=CLOSE)\n"
        "print(not o._observer.yielded())"
    )
    env = {environment.PROGRESS_FD: str(record.fd), environment.CHANNEL_FD: str(theirs.fileno())}
    env |= {environment.ROUND: "1", "RANK": "0", "PYTHONPATH": f"{torch_of(tmp_path)}:{ROOT / 'trainer'}"}
    try:
        for close in ("False", "True"):
            output = _run(tmp_path, code.replace("CLOSE", close), record.fd, theirs.fileno(), **env)
            assert output.split() == watched
    finally:
        record.close()
        ours.close()
        theirs.close()
