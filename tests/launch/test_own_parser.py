"""Launchers' own parsers and functions, those of the installed torch and accelerate, all asked by one child process."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.machine_zygote import environment
from trainmaster.contract.launch import own_parser
from trainmaster.contract.launch.command_line import Command, parse
from trainmaster.contract.launch.launch_errors import LaunchRefused
from trainmaster.contract.launch.launcher_option_tables import Launch, UnknownOption, read_by_tables
from trainmaster.contract.launch.launchers import ACCELERATE, TORCH_LAUNCH, TORCHRUN, Launcher

pytestmark = pytest.mark.processes

ACCELERATE_IS_HERE = importlib.util.find_spec("accelerate") is not None
needs_accelerate = pytest.mark.skipif(not ACCELERATE_IS_HERE, reason="accelerate is not installed")

# Imports once, then answers each request in a fork, as the program does in a process of its own.
CHILD = """
import importlib, json, os, sys
sys.path[:0] = json.loads(sys.argv[3])
for name in ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        pass
actions = sys.modules["torch.distributed.run"].get_args_parser()._actions
print("OPTIONS " + json.dumps([name for action in actions for name in action.option_strings]), flush=True)
for request, variables in json.loads(sys.argv[2]):
    if os.fork() == 0:
        os.environ.update(variables)
        if "HF_HOME" in variables:  # accelerate reads it when it is imported
            for name in ("accelerate.commands.launch", "accelerate.commands.config.config_args"):
                path = os.path.join(variables["HF_HOME"], "accelerate", "default_config.yaml")
                sys.modules[name].default_config_file = path
        sys.argv = [sys.argv[1], json.dumps(request)]
        exec(compile(open(sys.argv[0]).read(), sys.argv[0], "exec"))
    os.wait()
"""

TORCH_LINES = {
    "virtual": ["--virtual-local-rank", "train.py", "--x"],
    "abbreviated": ["--nproc_p=2", "--max-r", "3", "-m", "pkg.mod", "--x"],
    "every option": ["--standalone", "--nnodes=1:2", "--rdzv_conf", "a=b", "-t3", "--no-python", "./run.sh", "-v"],
    "run path": ["--run-path", "train.py", "--x"],
    "wrong": ["--no-such-flag", "train.py"],
    "wrong value": ["--max-restarts=many", "train.py"],
}
ACCELERATE_LINES = {
    "plain": ["--multi_gpu", "--num_processes=2", "--mixed_precision=bf16", "train.py", "--lr", "1"],
    "cpu": ["--cpu", "--dynamo_use_regional_compilation", "--num-cpu-threads-per-process", "3", "-m", "pkg.mod"],
    "fsdp": ["--use_fsdp", "--fsdp_version=2", "--num_processes", "4", "--dynamo_backend=inductor", "train.py"],
    "machines": ["--multi_gpu", "--num_machines=2", "--num_processes=4", "train.py"],
    "no python": ["--no_python", "./run.sh", "1"],
    "without a word about devices": ["train.py"],
    "both": ["--cpu", "--multi_gpu", "train.py"],
    "unknown": ["--no_such_flag", "train.py"],
    "absent": ["--config_file", "/no/such/config.yaml", "train.py"],
}
CONFIG = """
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
num_machines: 1
num_processes: 2
fsdp_config: {fsdp_version: 2, fsdp_state_dict_type: SHARDED_STATE_DICT, fsdp_reshard_after_forward: true}
"""

Answers = Mapping[tuple[str, str], dict[str, Any]]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """What the own parsers answer, by (launcher, name of the line)."""
    folder = tmp_path_factory.mktemp("accelerate")
    (folder / "config.yaml").write_text(CONFIG)
    (folder / "accelerate").mkdir()
    (folder / "accelerate" / "default_config.yaml").write_text(CONFIG.replace("bf16", "fp16"))
    torch = {(TORCHRUN, name): (line, {}) for name, line in TORCH_LINES.items()}
    torch[TORCH_LAUNCH, "old"] = (["--nproc_p=2", "train.py", "--x"], {})
    torch[TORCH_LAUNCH, "new"] = (["--use_env", "train.py", "--x"], {})
    torch[TORCHRUN, "variable"] = (["train.py"], {"PET_NPROC_PER_NODE": "3", "PET_MODULE": "1"})
    lines = {(ACCELERATE, name): (line, {"HF_HOME": "/nowhere"}) for name, line in ACCELERATE_LINES.items()}
    lines[ACCELERATE, "config"] = (["--config_file", str(folder / "config.yaml"), "train.py"], {})
    lines[ACCELERATE, "default config"] = (["train.py"], {"HF_HOME": str(folder)})
    asked = {**torch, **(lines if ACCELERATE_IS_HERE else {})}
    requests = [({"launcher": kind, "options": line}, env) for (kind, _), (line, env) in asked.items()]
    done = subprocess.run(
        [sys.executable, "-c", CHILD, own_parser.__file__, json.dumps(requests), json.dumps(sys.path[1:])],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    told = [line[len(own_parser.MARK) :] for line in done.stdout.splitlines() if line.startswith(own_parser.MARK)]
    assert len(told) == len(asked), done.stderr[-2000:]
    names = next(line.removeprefix("OPTIONS ") for line in done.stdout.splitlines() if line.startswith("OPTIONS "))
    found = {key: json.loads(text) for key, text in zip(asked, told, strict=True)}
    return {**found, (TORCHRUN, "all options"): {"names": json.loads(names)}}


def reader(answer: dict[str, Any]) -> Callable[..., Launch]:
    def read(launcher: Launcher, around: Any) -> Launch:
        assert "kind" in answer, answer
        return Launch(*(answer[name] for name in ("kind", "name", "args", "given", "environment")))

    return read


def command(kind: str, answer: dict[str, Any]) -> Command:
    words = {TORCHRUN: ["torchrun"], TORCH_LAUNCH: ["python", "-m", kind], ACCELERATE: ["accelerate", "launch"]}
    return parse([*words[kind], "x"], reader(answer))


@pytest.mark.parametrize(
    ("kind", "name", "entry"),
    [
        (TORCHRUN, "abbreviated", {"kind": "module", "name": "pkg.mod", "args": ["--x"]}),
        (TORCHRUN, "run path", {"kind": "script", "path": "train.py", "args": ["--x"]}),
        (TORCHRUN, "variable", {"kind": "module", "name": "train.py", "args": []}),
        (TORCH_LAUNCH, "old", {"kind": "script", "path": "train.py", "args": ["--local-rank=${local_rank}", "--x"]}),
        (TORCH_LAUNCH, "new", {"kind": "script", "path": "train.py", "args": ["--x"]}),
    ],
)
def test_torchs_own_parser_leads_to_the_script(answers: Answers, kind: str, name: str, entry: dict[str, Any]) -> None:
    assert command(kind, answers[kind, name]).entry == entry


def test_an_option_of_the_installed_torch_that_would_matter_is_refused_by_name(answers: Answers) -> None:
    assert answers[TORCHRUN, "virtual"]["name"] == "train.py"
    with pytest.raises(LaunchRefused, match="--virtual-local-rank can't be obeyed"):
        command(TORCHRUN, answers[TORCHRUN, "virtual"])


def test_what_was_given_is_told_in_full_names_and_what_was_not_is_not(answers: Answers) -> None:
    assert answers[TORCHRUN, "abbreviated"]["given"] == {"nproc_per_node": "2", "max_restarts": "3", "module": ""}
    assert answers[TORCHRUN, "variable"]["given"] == {"nproc_per_node": "3", "module": "1"}


@pytest.mark.parametrize(
    ("name", "words"),
    [("wrong", "unrecognized|required|no-such-flag"), ("wrong value", "invalid int value: 'many'")],
)
def test_what_torchs_own_parser_refuses_is_told_in_its_words(answers: Answers, name: str, words: str) -> None:
    assert any(word in answers[TORCHRUN, name]["refused"] for word in words.split("|"))


def test_our_table_reads_torchruns_options_as_its_own_parser_does(answers: Answers) -> None:
    for name in ("every option", "run path"):
        own = answers[TORCHRUN, name]
        table = read_by_tables(Launcher(TORCHRUN, "python", TORCH_LINES[name]))
        assert (table.kind, table.name, table.args) == (own["kind"], own["name"], own["args"])
        assert table.given == own["given"]


def test_every_option_of_the_installed_torchrun_is_in_our_table(answers: Answers) -> None:
    for option in answers[TORCHRUN, "all options"]["names"]:
        try:
            read_by_tables(Launcher(TORCHRUN, "python", [option, "a", "b"]))
        except UnknownOption:
            pytest.fail(f"torchrun {option} is in no table")


@needs_accelerate
def test_accelerates_options_become_the_variables_that_its_own_launcher_sets(answers: Answers) -> None:
    plain = command(ACCELERATE, answers[ACCELERATE, "plain"])
    assert plain.entry == {"kind": "script", "path": "train.py", "args": ["--lr", "1"]}
    assert plain.environment["ACCELERATE_MIXED_PRECISION"] == "bf16"
    assert not {"MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS"} & set(plain.environment)
    cpu = command(ACCELERATE, answers[ACCELERATE, "cpu"])
    assert cpu.entry == {"kind": "module", "name": "pkg.mod", "args": []}
    assert cpu.environment["ACCELERATE_USE_CPU"] == "True"
    assert cpu.environment["ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION"] == "True"
    assert cpu.environment["OMP_NUM_THREADS"] == "3", "a person said it"
    fsdp = command(ACCELERATE, answers[ACCELERATE, "fsdp"])
    assert (fsdp.environment["ACCELERATE_USE_FSDP"], fsdp.environment["FSDP_VERSION"]) == ("true", "2")
    assert fsdp.environment["ACCELERATE_DYNAMO_BACKEND"] == "INDUCTOR"
    assert command(ACCELERATE, answers[ACCELERATE, "no python"]).argv == ["./run.sh", "1"]


@needs_accelerate
def test_a_line_of_accelerate_without_cpu_leaves_it_to_the_pod_whether_ranks_meet_on_cpus(answers: Answers) -> None:
    """In a pod without a device, ranks are told to use CPUs: each of them would train alone otherwise."""
    silent = command(ACCELERATE, answers[ACCELERATE, "without a word about devices"])
    assert silent.environment["ACCELERATE_MIXED_PRECISION"] == "no"
    assert "ACCELERATE_USE_CPU" not in silent.environment


@needs_accelerate
def test_accelerates_configuration_file_counts_as_its_options_do(answers: Answers) -> None:
    given = command(ACCELERATE, answers[ACCELERATE, "config"])
    assert given.environment["ACCELERATE_MIXED_PRECISION"] == "bf16"
    assert given.environment["FSDP_STATE_DICT_TYPE"] == "SHARDED_STATE_DICT"
    assert given.given["num_processes"] == "2"
    default = command(ACCELERATE, answers[ACCELERATE, "default config"])
    assert default.environment["ACCELERATE_MIXED_PRECISION"] == "fp16"
    assert default.environment["ACCELERATE_USE_FSDP"] == "true"
    assert any(Path(path).name == "default_config.yaml" for path in answers[ACCELERATE, "default config"]["files"])


@needs_accelerate
def test_the_job_says_how_many_machines_there_are(answers: Answers) -> None:
    command_ = command(ACCELERATE, answers[ACCELERATE, "machines"])
    assert command_.notes == (
        "accelerate launch --num_machines has no effect: spec.workers says how many pods there are",
    )


@needs_accelerate
@pytest.mark.parametrize(
    ("name", "words"),
    [("both", "You can only use one of"), ("unknown", "no_such_flag"), ("absent", "/no/such/config.yaml")],
)
def test_what_accelerate_refuses_is_told_in_its_words(answers: Answers, name: str, words: str) -> None:
    assert words in answers[ACCELERATE, name]["refused"]
