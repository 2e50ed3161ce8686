"""A launcher that a rank's own program starts becomes the script that it would start, or is refused by name."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from tests.launch import stand_in_launchers
from trainmaster.agent.shell.launching import foreign_launchers
from trainmaster.rank import executed_rank_observation, script_runner
from trainmaster.rank.injected import trainmaster_nested_launch as nested

SCRIPT = """
import json, os, sys
told = os.environ.get("SET_BY_THE_LAUNCHER") or os.environ.get("HOROVOD_CYCLE_TIME")
print(json.dumps([sys.argv[1:], os.environ["RANK"], told, os.getpid()]))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With packages in the place of torch, deepspeed and horovod, and a script."""
    stand_in_launchers.write(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def run(folder: Path, *argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A program of rank 3, the second of two in its pod."""
    env = rank_environment(folder, **variables)
    return subprocess.run(argv, env=env, cwd=folder, capture_output=True, text=True, timeout=60)


def rank_environment(folder: Path, **variables: str) -> dict[str, str]:
    given = {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder), "TRAINMASTER_ROUND": "1", "MASTER_PORT": "9"}
    local = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "TRAINMASTER_RANKS_PER_POD": "2"}
    env = {**given, "WORLD_SIZE": "4", "RANK": "3", **local, **variables}
    names = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT")
    env["TRAINMASTER_NUMBERS"] = json.dumps({name: env[name] for name in names})
    return {**env, **executed_rank_observation.variables(env)}


def run_forked(folder: Path, source: str, imported: list[str]) -> subprocess.CompletedProcess[str]:
    """A script of that rank, in a fork of a zygote that has imported some modules."""
    (folder / "launch.py").write_text(source)
    code = f"""
import importlib, os
from trainmaster.agent.zygote import child_setup
for name in {imported!r}:
    importlib.import_module(name)
os.environ.update({rank_environment(folder)!r})
child_setup.run({{"kind": "script", "path": "launch.py", "args": []}})
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    argv = [sys.executable, "-c", code]
    return subprocess.run(argv, env=env, cwd=folder, capture_output=True, text=True, timeout=60)


def test_a_launcher_in_a_shell_script_becomes_the_script(folder: Path) -> None:
    (folder / "run.sh").write_text(f"{sys.executable} -m torch.distributed.run --nproc-per-node=2 train.py\n")
    done = run(folder, "sh", "run.sh")
    assert json.loads(done.stdout)[:3] == [["--local-rank=1"], "3", "1"], done.stderr


def test_a_program_that_launches_itself_becomes_the_script(folder: Path) -> None:
    launch = "import os, sys, torch.distributed.run as run; print(os.getpid()); "
    launch += "sys.argv[1:] = ['--nproc=2', 'train.py']; run.main()"
    first, second = run(folder, sys.executable, "-uc", launch).stdout.splitlines()
    assert json.loads(second)[3] == int(first), "one process, not a process beside it"


BY_MAIN = "import sys; sys.argv[1:] = ['--nproc=2', 'train.py']; from torch.distributed.run import main; main()"
BY_FUNCTION = """
import sys
from torch.distributed.launcher import Config, launch_agent
launch_agent(Config(2), sys.executable, ["train.py", "--local-rank=${local_rank}"])
"""
BY_SUBPROCESS = """
import subprocess, sys
sys.exit(subprocess.call([sys.executable, "-m", "torch.distributed.run", "--nproc=2", "train.py"]))
"""


@pytest.mark.parametrize("imported", [[], ["torch.distributed.run"]], ids=["", "imported already"])
@pytest.mark.parametrize("source", [BY_MAIN, BY_FUNCTION, BY_SUBPROCESS], ids=["main", "function", "subprocess"])
def test_a_launcher_in_a_forked_program_becomes_the_script(folder: Path, source: str, imported: list[str]) -> None:
    done = run_forked(folder, source, imported)
    assert json.loads(done.stdout)[:2] == [["--local-rank=1"], "3"], done.stderr


def test_a_launched_function_has_its_result_under_rank_0_and_under_all_ranks_of_the_node(folder: Path) -> None:
    (folder / "launch.py").write_text(
        "import os\nfrom torch.distributed.launcher import api\n"
        "print(api.launch_agent(api.Config(2), lambda x: x * 2 + int(os.environ['RANK']), (20,)))\n"
    )
    second_node = run(folder, sys.executable, "launch.py")
    assert second_node.stdout == "{0: 43, 2: 43, 3: 43}\n", second_node.stderr
    one_node = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}
    assert run(folder, sys.executable, "launch.py", **one_node).stdout == "{0: 41, 1: 41}\n"


@pytest.mark.parametrize(
    "launcher",
    [
        "-m torch.distributed.run --nproc-per-node=2 train.py",
        "-c 'from deepspeed.launcher.runner import main; main()' --num_gpus=2 train.py",
    ],
    ids=["torch", "deepspeed"],
)
def test_what_a_shell_script_exports_for_its_launcher_does_not_number_the_rank(folder: Path, launcher: str) -> None:
    """A launcher sets these variables in each of its processes: with others, each pod would train alone."""
    exports = "export MASTER_PORT=29500 WORLD_SIZE=2 RANK=0 LOCAL_RANK=0"
    (folder / "train.py").write_text(f"{SCRIPT}print(*(os.environ[name] for name in ('WORLD_SIZE', 'MASTER_PORT')))\n")
    (folder / "run.sh").write_text(f"{exports}\n{sys.executable} {launcher}\n")
    first, second = run(folder, "sh", "run.sh").stdout.splitlines()
    ((argument,), rank, _, _), numbers = json.loads(first), second
    assert (argument[-1], rank, numbers) == ("1", "3", "4 9")


def test_a_launched_function_has_the_numbers_of_the_rank_and_its_caller_has_its_own(folder: Path) -> None:
    """notebook_launcher of accelerate sets them around the launch."""
    (folder / "launch.py").write_text(
        "import os\nfrom torch.distributed.launcher import api\nos.environ['WORLD_SIZE'] = '2'\n"
        "print(api.launch_agent(api.Config(2), lambda: os.environ['WORLD_SIZE'], ()), os.environ['WORLD_SIZE'])\n"
    )
    done = run(folder, sys.executable, "launch.py")
    assert done.stdout == "{0: '4', 2: '4', 3: '4'} 2\n", done.stderr


def test_another_number_of_processes_is_refused_for_good(folder: Path) -> None:
    done = run(folder, sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=4", "train.py")
    assert done.returncode == 93
    assert "would start 4 processes in each pod, but workers.ranksPerPod is 2" in done.stderr


def test_deepspeed_in_a_program_becomes_the_script_with_its_local_rank(folder: Path) -> None:
    launch = "from deepspeed.launcher.runner import main; main()"
    done = run(folder, sys.executable, "-c", launch, "--num_gpus=2", "train.py")
    assert json.loads(done.stdout)[:2] == [["--local_rank=1"], "3"], done.stderr


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("deepspeed.launcher.runner --num_gpus=2 train.py -x", [["--local_rank=1", "-x"], "3", None]),
        (f"horovod.runner.launch -np 4 --cycle-time-ms 2 {sys.executable} train.py -x", [["-x"], "3", "2.0"]),
        ("accelerate.commands.launch train.py -x", [["-x"], "3", "1"]),
    ],
    ids=["deepspeed", "horovod", "accelerate"],
)
def test_a_launcher_that_python_runs_as_a_module_becomes_the_script(folder: Path, line: str, told: list[Any]) -> None:
    (folder / "run.sh").write_text(f"{sys.executable} -m {line}\n")
    done = run(folder, "sh", "run.sh")
    assert json.loads(done.stdout or "[]")[:3] == told, done.stderr


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--hostfile=hosts", "deepspeed --hostfile can't be obeyed"),
        ("--num_gpus=4", "deepspeed --num_gpus=4, but workers.ranksPerPod is 2"),
    ],
)
def test_an_option_of_deepspeed_that_would_matter_is_refused_for_good(folder: Path, option: str, words: str) -> None:
    launch = "from deepspeed.launcher.runner import main; main()"
    done = run(folder, sys.executable, "-c", launch, option, "train.py")
    assert done.returncode == 93
    assert done.stderr.startswith(words)


HOROVODRUN = "from horovod.runner.launch import run_commandline; run_commandline()"


def test_horovodrun_in_a_program_becomes_the_script_with_its_variables(folder: Path) -> None:
    line = ("-np", "4", "--cycle-time-ms=2", sys.executable, "train.py", "--x")
    done = run(folder, sys.executable, "-c", HOROVODRUN, *line)
    assert json.loads(done.stdout)[:3] == [["--x"], "3", "2.0"], done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--hostfile=hosts",), "horovodrun --hostfile can't be obeyed"),
        (("-np", "2"), "horovodrun -np 2, but the job has 4 ranks"),
    ],
)
def test_an_option_of_horovodrun_that_would_matter_is_refused_for_good(
    folder: Path, options: tuple[str, ...], words: str
) -> None:
    done = run(folder, sys.executable, "-c", HOROVODRUN, *options, sys.executable, "train.py")
    assert done.returncode == 93
    assert done.stderr.startswith(words)


def test_later_rounds_of_an_elastic_job_may_have_another_size_than_horovodrun_was_told(folder: Path) -> None:
    line = ("-np", "2", sys.executable, "train.py")
    done = run(folder, sys.executable, "-c", HOROVODRUN, *line, TRAINMASTER_ROUND="2")
    assert json.loads(done.stdout)[1] == "3", done.stderr


@pytest.mark.parametrize(
    ("processes", "code", "words"),
    [(4, 0, "[23, 23, 23, 23]"), (2, 93, "would start 2 processes, but the job has 4 ranks")],
)
def test_a_function_of_horovod_run_is_called_in_the_rank(folder: Path, processes: int, code: int, words: str) -> None:
    (folder / "launch.py").write_text(
        f"import os\nfrom horovod.runner import run\nprint(run(lambda: 20 + int(os.environ['RANK']), {processes}))\n"
    )
    done = run(folder, sys.executable, "launch.py")
    assert (done.returncode, words in done.stdout + done.stderr) == (code, True), done.stderr


def test_a_rank_that_has_joined_its_round_may_launch_in_its_own_process(folder: Path) -> None:
    """It would be replaced by what it launches."""
    with socket.create_server(("127.0.0.1", 0)) as store:
        port = str(store.getsockname()[1])
        code = f"import socket; c = socket.create_connection(('127.0.0.1', {port}))\n{BY_MAIN}"
        done = run(folder, sys.executable, "-c", code, MASTER_PORT=port)
    assert "a world of its own was started" in done.stderr


@pytest.mark.parametrize("given", ["MASTER_PORT", "29501"], ids=["", "with a port of its own"])
def test_a_rank_that_has_joined_its_round_may_launch_what_it_likes(folder: Path, given: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as store:
        port = str(store.getsockname()[1])
        code = (
            f"import os, socket, subprocess, sys; c = socket.create_connection(('127.0.0.1', {port})); "
            f"os.environ['MASTER_PORT'] = os.environ.get('{given}', '{given}'); "
            "subprocess.run([sys.executable, '-m', 'torch.distributed.run', '--nproc-per-node=1', 'train.py'])"
        )
        done = run(folder, sys.executable, "-c", code, MASTER_PORT=port, TRAINMASTER_STORE=f"127.0.0.1:{port}")
    assert "a world of its own was started" in done.stderr


def test_a_program_may_launch_one_function_after_another_and_a_function_what_it_likes(folder: Path) -> None:
    """A function may leave its world open, so its process is still connected to the store."""
    (folder / "launch.py").write_text(
        "import os, socket\nfrom torch.distributed.launcher import api\nkept = []\n"
        "port = int(os.environ['MASTER_PORT'])\n"
        "def join():\n    kept.append(socket.create_connection(('127.0.0.1', port)))\n    return len(kept)\n"
        "def evaluate():\n    api.launch_agent(api.Config(2), join, ())\n"
        "for function in (join, join, evaluate):\n"
        "    print(api.launch_agent(api.Config(2), function, ())[0], flush=True)\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as store:
        done = run(folder, sys.executable, "launch.py", MASTER_PORT=str(store.getsockname()[1]))
    assert done.stdout == "1\n2\n", "the evaluation has a world of its own"
    assert "a world of its own was started" in done.stderr


@pytest.mark.parametrize(("said", "used"), [("False", "true"), ("True", "True")])
def test_a_line_of_accelerate_without_cpu_does_not_let_ranks_of_a_pod_without_devices_train_alone(
    monkeypatch: pytest.MonkeyPatch, said: str, used: str
) -> None:
    became: list[dict[str, str]] = []
    monkeypatch.setattr(nested, "_become", lambda program, env: became.append(env))
    monkeypatch.setattr(nested, "has_joined", lambda: False)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    launch = types.ModuleType("accelerate.commands.launch")
    vars(launch)["simple_launcher"] = None
    vars(launch)["prepare_simple_launcher_cmd_env"] = lambda _: (["python", "t.py"], {"ACCELERATE_USE_CPU": said})
    nested._take_over_simple(launch)
    vars(launch)["simple_launcher"](types.SimpleNamespace())
    assert [env["ACCELERATE_USE_CPU"] for env in became] == [used]


def test_outside_a_rank_nothing_is_changed(folder: Path) -> None:
    env = {"PATH": os.environ["PATH"], **executed_rank_observation.variables({"PYTHONPATH": str(folder)})}
    argv = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "train.py"]
    done = subprocess.run(argv, env=env, cwd=folder, capture_output=True, text=True, timeout=60)
    assert "a world of its own was started" in done.stderr


def test_the_sitecustomize_behind_ours_still_runs(folder: Path) -> None:
    (folder / "sitecustomize.py").write_text("print('the next one')\n")
    done = run(folder, sys.executable, "-c", "import sys; print([p for p in sys.path if p.endswith('injected')])")
    assert done.stdout.splitlines() == ["the next one", "[]"]


@pytest.mark.parametrize(
    ("processes", "argv", "fine"),
    [
        (2, ["torchrun", "--nproc-per-node=2"], True),
        (4, ["torchrun", "--nproc-per-node=4"], True),
        (1, ["torchrun", "train.py"], True),
        (1, ["torchrun", "--nproc-per-node=1"], False),
        (8, ["accelerate", "launch", "--num_processes=8"], False),
    ],
)
def test_a_launcher_may_count_the_ranks_of_a_pod_or_of_the_machine(processes: int, argv: list[str], fine: bool) -> None:
    env = {"TRAINMASTER_RANKS_PER_POD": "2", "LOCAL_WORLD_SIZE": "4"}
    assert (nested.wrong_number(processes, argv, env) == "") == fine


def test_a_number_that_fits_one_machine_alone_is_noted_once() -> None:
    argv, env = ["/v/bin/torchrun", "--nproc-per-node=2"], {"TRAINMASTER_RANKS_PER_POD": "1", "LOCAL_WORLD_SIZE": "2"}
    assert nested.wrong_number(2, argv, env) == ""
    assert nested.note_for_clusters(2, argv, {**env, "LOCAL_RANK": "0"}) == (
        "torchrun starts 2 processes, the number of this job's ranks on one machine. On a cluster the job would fail, "
        "because workers.ranksPerPod is 1 there: let both be the same number"
    )
    assert nested.note_for_clusters(2, argv, {**env, "LOCAL_RANK": "1"}) == ""
    assert nested.note_for_clusters(1, argv, {**env, "LOCAL_RANK": "0"}) == ""
    in_the_pod = {"TRAINMASTER_RANKS_PER_POD": "2", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    assert nested.note_for_clusters(2, argv, in_the_pod) == ""


@pytest.mark.parametrize(
    ("argv", "env", "words"),
    [
        (["mpirun", "-np", "2", "python", "t.py"], {}, "mpirun starts processes of its own"),
        (["/v/bin/python", "/v/bin/horovodrun", "t.py"], {}, "horovodrun, which this job's program starts"),
        (["/v/bin/python", "/v/bin/deepspeed", "t.py"], {}, "deepspeed, which this job's program starts"),
        (
            ["/v/bin/python3", "/v/bin/torchrun", "t.py"],
            {"PYTHONPATH": "."},
            "torchrun, which this job's program starts",
        ),
        (["python", "-m", "torch.distributed.run", "t.py"], {}, "only add to it, or write that line"),
        (["/v/bin/python3", "/v/bin/torchrun", "t.py"], {"PYTHONPATH": f".:{script_runner.INJECTED}"}, ""),
        (["python", "-"], {}, ""),
        (["python", "t.py"], {}, ""),
        (["bash", "run.sh"], {}, ""),
        ([], {}, ""),
    ],
    ids=str,
)
def test_a_launcher_that_would_start_a_world_of_its_own_is_known_by_its_command_line(
    argv: list[str], env: dict[str, str], words: str
) -> None:
    said = foreign_launchers.refusal(argv, env)
    assert words in said
    assert bool(words) == bool(said)


@pytest.mark.parametrize("joined", [False, True])
def test_a_launcher_that_a_script_starts_late_is_refused_unless_its_rank_has_joined(
    monkeypatch: pytest.MonkeyPatch, joined: bool
) -> None:
    looks: list[int] = []

    def find(pid: int) -> str:
        looks.append(pid)
        return "mpirun starts processes of its own" if len(looks) == 9 else ""

    monkeypatch.setattr(foreign_launchers, "find", find)
    told: list[str] = []
    rank = types.SimpleNamespace(process=types.SimpleNamespace(pid=1), joined=False)
    round: Any = types.SimpleNamespace(ranks=[rank], verdict=None)
    round.spoke = lambda _, words: told.append(words["message"])

    async def train() -> None:
        foreign_launchers.watch(round, lambda _: not told, (0.0, 0.0))
        rank.joined = joined
        for _ in range(100):
            await asyncio.sleep(0)

    asyncio.run(train())
    assert told == ([] if joined else ["mpirun starts processes of its own"])
