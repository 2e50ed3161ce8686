"""What a line that starts a script means, or the sentence that refuses it. No launcher is asked here."""

from __future__ import annotations

from typing import Any

import pytest

from trainmaster.contract.launch import Command, LaunchRefused, UnknownOption, parse

SCRIPT = {"kind": "script", "path": "train.py", "args": ["--x", "1"]}
LOCAL = {"kind": "script", "path": "train.py", "args": ["--local-rank=${local_rank}", "--x", "1"]}
DEEPSPEED = {"kind": "script", "path": "train.py", "args": ["--local_rank=${local_rank}", "--x", "1"]}
TAIL = ["train.py", "--x", "1"]


def module(*args: str) -> dict[str, Any]:
    return {"kind": "module", "name": "pkg.mod", "args": list(args)}


@pytest.mark.parametrize(
    ("argv", "entry"),
    [
        (["python", *TAIL], SCRIPT),
        (["python3", "-u", *TAIL], SCRIPT),
        (["/opt/venv/bin/python3.12", *TAIL], SCRIPT),
        (["torchrun", "--nproc-per-node=2", *TAIL], SCRIPT),
        (["torchrun", "--standalone", "--nproc_per_node", "2", "--max-restarts", "3", *TAIL], SCRIPT),
        (["torchrun", "-r3", "-t", "3", "--log-dir=/tmp/x", *TAIL], SCRIPT),
        (["torchrun", "--run-path", *TAIL], SCRIPT),
        (["torchrun", "--", *TAIL], SCRIPT),
        (["torchrun", "--nnodes=1", "--nproc_per_node=2", "-m", "pkg.mod", "--x"], module("--x")),
        (["/opt/venv/bin/torchrun", *TAIL], SCRIPT),
        (["python", "/opt/venv/bin/torchrun", *TAIL], SCRIPT),
        (["python", "-m", "torch.distributed.run", "--nnodes", "1", *TAIL], SCRIPT),
        (["python", "-mtorch.distributed.run", "--nnodes", "1", *TAIL], SCRIPT),
        (["python", "-um", "torch.distributed.run", *TAIL], SCRIPT),
        (["python", "-m", "torch.distributed.launch", "--nproc_per_node=2", *TAIL], LOCAL),
        (["python", "-m", "torch.distributed.launch", "--use-env", *TAIL], SCRIPT),
        (["accelerate", "launch", "--multi_gpu", "--mixed_precision=bf16", *TAIL], SCRIPT),
        (["accelerate", "launch", "--dynamo_use_regional_compilation", *TAIL], SCRIPT),
        (["accelerate-launch", "--cpu", "-m", "pkg.mod"], module()),
        (["python", "-m", "accelerate.commands.launch", "--multi_gpu", *TAIL], SCRIPT),
        (["python", "-m", "accelerate.commands.accelerate_cli", "launch", *TAIL], SCRIPT),
        (["deepspeed", "--num_gpus", "2", "--master_port=29501", *TAIL], DEEPSPEED),
        (["ds", "--num_gpus", "2", *TAIL], DEEPSPEED),
        (["python", "/opt/venv/bin/ds", *TAIL], DEEPSPEED),
        (["deepspeed", "--no_local_rank", "-q", *TAIL], SCRIPT),
        (["deepspeed", "--module", "--no_local_rank", "pkg.mod", "-v"], module("-v")),
        (["python", "-m", "deepspeed.launcher.runner", "--no_ssh", *TAIL], DEEPSPEED),
        (["sh", "-c", "deepspeed train.py --x 1"], DEEPSPEED),
        (["horovodrun", "-np", "2", "python", *TAIL], SCRIPT),
        (["horovodrun", "-np=2", "-Hlocalhost:2", "--gloo", "--verbose", "python", "-u", *TAIL], SCRIPT),
        (["python", "-m", "horovod.runner.launch", "--num-proc", "2", "python", *TAIL], SCRIPT),
        (["sh", "-c", "horovodrun -np 2 sh -c 'exec python train.py --x 1'"], SCRIPT),
        (["env", "X=1", "torchrun", *TAIL], SCRIPT),
        (["nohup", "time", "python", *TAIL], SCRIPT),
        (["sh", "-c", "exec torchrun --nproc-per-node=2 train.py --x 1"], SCRIPT),
        (["bash", "-ec", "X=1 python 'train.py' --x \"1\""], SCRIPT),
        (["torchrun", "--no-python", "env", "A=b", "python", *TAIL], SCRIPT),
        (["python", "-m", "pkg.mod", "-v"], module("-v")),
        (["python", "-c", "print()", "-v"], {"kind": "code", "code": "print()", "args": ["-v"]}),
    ],
    ids=" ".join,
)
def test_a_line_leads_to_the_script_that_ranks_run(argv: list[str], entry: dict[str, Any]) -> None:
    assert parse(argv).entry == entry


@pytest.mark.parametrize(
    ("argv", "executed"),
    [
        (["bash", "run.sh"], ["bash", "run.sh"]),
        (["bash", "-c", "cd src && python train.py"], ["bash", "-c", "cd src && python train.py"]),
        (["bash", "-c", "python train.py $ARGS"], ["bash", "-c", "python train.py $ARGS"]),
        (["bash", "-c", 'python train.py "$ARGS"'], ["bash", "-c", 'python train.py "$ARGS"']),
        (["bash", "-lc", "torchrun --nproc-per-node=2 train.py"], ["bash", "-lc", "exec python train.py"]),
        (["./train"], ["./train"]),
        (["sh", "-c", "exit 3"], ["sh", "-c", "exit 3"]),
        (["bash", "-c", "source venv/bin/activate"], ["bash", "-c", "source venv/bin/activate"]),
        (["python", "--version"], ["python", "--version"]),
        (["torchrun", "--no-python", "./run.sh", "-v"], ["./run.sh", "-v"]),
        (["nice", "-n", "5", "python", *TAIL], ["nice", "-n", "5", "python", *TAIL]),
        (["nice", "-n", "5", "torchrun", "--nproc-per-node=2", *TAIL], ["nice", "-n", "5", "python", *TAIL]),
        (
            ["numactl", "-N", "0", "--membind=0", "torchrun", *TAIL],
            ["numactl", "-N", "0", "--membind=0", "python", *TAIL],
        ),
        (["timeout", "1h", "torchrun", *TAIL], ["timeout", "1h", "python", *TAIL]),
        (["uv", "run", *TAIL], ["uv", "run", "python", *TAIL]),
        (["uv", "run", "--frozen", "torchrun", *TAIL], ["uv", "run", "--frozen", "python", *TAIL]),
        (["conda", "run", "-n", "x", "python", *TAIL], ["conda", "run", "-n", "x", "python", *TAIL]),
        (["poetry", "run", "accelerate", "launch", *TAIL], ["poetry", "run", "python", *TAIL]),
        (["env", "-C", "src", "python", "train.py"], ["env", "-C", "src", "python", "train.py"]),
        (["time", "-o", "f", "python", "train.py"], ["time", "-o", "f", "python", "train.py"]),
    ],
    ids=" ".join,
)
def test_what_is_more_than_an_interpreter_is_executed_without_its_launcher(
    argv: list[str], executed: list[str]
) -> None:
    command = parse(argv)
    assert (command.entry, command.argv) == (None, executed)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "the command is empty"),
        (["torchrun", "--standalone"], "torchrun: no script follows its options"),
        (["torchrun", "--virtual-local-rank", "t.py"], "torchrun --virtual-local-rank can't be obeyed"),
        (["torchrun", "--numa-binding=node", "t.py"], "spec.workers.pinning gives ranks cores of their own"),
        (["torchrun", "--no-python", "-m", "t"], "exclude each other"),
        (["torchrun", "--no-python", "torchrun", "t.py"], "torchrun starts a launcher of ranks"),
        (["python", "-m", "torch.distributed.launch", "--no-python", "./t"], "--no-python needs --use-env"),
        (["accelerate", "launch", "--tpu", "t.py"], "ranks are not started on TPUs"),
        (["accelerate", "launch", "--mpirun_hostfile=h", "t.py"], "mpirun starts no ranks here"),
        (["deepspeed", "--hostfile=h", "t.py"], "deepspeed --hostfile can't be obeyed, since the pods of spec.workers"),
        (["deepspeed", "-i", "a:0", "t.py"], "deepspeed --include can't be obeyed, since a pod's own resources"),
        (["deepspeed", "--autotuning", "run", "t.py"], "deepspeed --autotuning can't be obeyed"),
        (["horovodrun", "-np", "two", "python", "t.py"], "horovodrun -np two: a whole number of at least 1"),
        (["horovodrun", "-np", "2"], "horovodrun: no script follows its options"),
        (["horovodrun", "-H", "a:2,b:2", "python", "t.py"], "horovodrun --hosts=a:2,b:2 can't be obeyed, since the"),
        (["horovodrun", "-hostfile", "h", "python", "t.py"], "horovodrun --hostfile can't be obeyed, since the pods"),
        (["horovodrun", "--mpi", "python", "t.py"], "horovodrun --mpi can't be obeyed, since ranks meet over gloo"),
        (["horovodrun", "--min-np", "2", "python", "t.py"], "horovodrun --min-np can't be obeyed, .* workers.min and"),
        (["horovodrun", "--config-file=f", "python", "t.py"], "--config-file can't be obeyed, since only horovod"),
        (["horovodrun", "-v", "x"], "horovodrun --version can't be obeyed, since it runs no script"),
        (["horovodrun", "--cycle-time-ms", "-1", "python", "t.py"], "--cycle-time-ms=-1: a number of at least 0"),
        (["horovodrun", "--log-level=debug", "python", "t.py"], "--log-level=debug: one of TRACE, DEBUG, INFO"),
        (["horovodrun", "--stall-check", "--no-stall-check", "x"], "--no-stall-check is given with its opposite"),
        (["horovodrun", "-np", "2", "torchrun", "t.py"], "horovodrun starts a launcher of ranks: write one of the two"),
        (["mpirun", "python", "t.py"], r"write the command that each rank runs, \[python, train.py, …\]"),
        (["/usr/bin/srun", "python", "t.py"], "srun starts processes of its own"),
        (["fabric", "run", "t.py"], "fabric run starts processes of its own"),
        (["nice", "-n", "5", "mpirun", "python", "t.py"], "mpirun starts processes of its own"),
        (["sh", "-c", "srun python t.py"], "srun starts processes of its own"),
        (["python", "-m", "composer.cli.launcher", "t.py"], "python -m composer.cli.launcher starts"),
        (["env", "-i", "python", "t.py"], "env -i takes away the variables"),
        (["python", "-", "<", "t.py"], "standard input, which is empty for ranks"),
        (["python"], "python has no script to run"),
        (["torchrun --nproc-per-node=2 t.py"], r"is one word: write its words as a list, \[torchrun, --nproc"),
        (["sh", "-c", "nohup torchrun t.py > log 2>&1 &"], "the rank would end at once: leave & out"),
        (["OMP_NUM_THREADS=1", "torchrun", "t.py"], r"is no program: write \[env, OMP_NUM_THREADS=1, …\]"),
        (["python", "-m"], "the name of a module is expected after it"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_ranks_cannot_run_is_refused_by_name(argv: list[str], words: str) -> None:
    with pytest.raises(LaunchRefused, match=words):
        parse(argv)


@pytest.mark.parametrize(
    "argv",
    [
        ["torchrun", "--no-such-flag", "t.py"],
        ["torchrun", "-z", "t.py"],
        ["accelerate", "launch", "--new_flag", "t.py"],
        ["deepspeed", "--new_flag", "t.py"],
        ["horovodrun", "--new-flag", "t.py"],
    ],
    ids=" ".join,
)
def test_an_option_in_no_table_is_refused_and_never_guessed(argv: list[str]) -> None:
    with pytest.raises(UnknownOption, match=f"the option {argv[-2]} is not known"):
        parse(argv)


def test_the_interpreters_own_flags_are_kept_and_rule_out_another_interpreter() -> None:
    assert parse(["python", "-OO", "-Xdev", "-W", "error", "train.py"]).flags == [
        "-O",
        "-O",
        "-X",
        "dev",
        "-W",
        "error",
    ]
    assert parse(["python", "-u", "train.py"]).flags == []
    assert parse(["/opt/other/bin/python", "t.py"], is_ours=lambda _: False) == Command(
        ["/opt/other/bin/python", "t.py"]
    )


def test_a_launcher_in_a_folder_runs_the_interpreter_beside_it() -> None:
    assert parse(["/opt/venv/bin/torchrun", "t.py"], is_ours=lambda _: False).argv == ["/opt/venv/bin/python", "t.py"]


def test_variables_before_a_program_are_set_for_ranks_and_others_taken_away() -> None:
    command = parse(["env", "-u", "A", "--unset=B", "C=1 2", "bash", "-c", "D=x exec python train.py"])
    assert command.environment == {"A": None, "B": None, "C": "1 2", "D": "x"}


def test_the_old_launcher_gives_each_rank_its_number_as_an_argument() -> None:
    command = parse(["python", "-m", "torch.distributed.launch", "train.py", "--x"]).of_rank(3)
    assert command.entry is not None
    assert command.entry["args"] == ["--local-rank=3", "--x"]
    assert command.argv == ["python", "train.py", "--local-rank=3", "--x"]


def test_a_dollar_in_a_plain_command_stays_as_it_is() -> None:
    assert parse(["python", "train.py", "${local_rank}"]).of_rank(3).argv[-1] == "${local_rank}"


def test_options_of_horovodrun_become_the_variables_that_it_sets() -> None:
    words = "--fusion-threshold-mb=32 --cycle-time-ms 3.5 --no-torus-allreduce --no-stall-check --log-level INFO --tcp"
    assert parse(["horovodrun", *words.split(), "env", "X=1", "python", "t.py"]).environment == {
        "HOROVOD_FUSION_THRESHOLD": str(32 * 1024 * 1024),
        "HOROVOD_CYCLE_TIME": "3.5",
        "HOROVOD_TORUS_ALLREDUCE": "0",
        "HOROVOD_STALL_CHECK_DISABLE": "1",
        "HOROVOD_LOG_LEVEL": "INFO",
        "NCCL_IB_DISABLE": "1",
        "X": "1",
    }


def test_horovodrun_tunes_and_draws_a_timeline_only_when_it_is_told_to() -> None:
    words = ["--autotune-log-file", "f", "--timeline-mark-cycles", "python", "t.py"]
    idle = parse(["horovodrun", *words])
    assert idle.environment == {}
    assert idle.notes == (
        "horovodrun --autotune-log-file has no effect: Horovod does not tune itself without --autotune",
        "horovodrun --timeline-mark-cycles has no effect: there is no timeline without --timeline-filename",
    )
    told = parse(["horovodrun", "--autotune", "--timeline-filename=t.json", *words])
    assert told.notes == ()
    assert told.environment == {
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_AUTOTUNE_LOG": "f",
        "HOROVOD_TIMELINE": "t.json",
        "HOROVOD_TIMELINE_MARK_CYCLES": "1",
    }


def test_all_interfaces_that_horovodrun_is_told_are_passed_on() -> None:
    several = ["--network-interface", "eth0", "--network-interface=eth1"]
    for options in (several, ["--network-interfaces", "eth0,eth1"]):
        assert parse(["horovodrun", *options, "python", "t.py"]).environment == {
            "HOROVOD_GLOO_IFACE": "eth0",
            "NCCL_SOCKET_IFNAME": "eth0,eth1",
        }


def test_options_without_effect_are_told() -> None:
    notes = parse(["nohup", "torchrun", "--max-restarts=3", "--rdzv-backend", "c10d", "--tee", "3", "t.py"]).notes
    assert [note.split(":")[0] for note in notes] == [
        "nohup is left out",
        "torchrun --max-restarts has no effect",
        "torchrun --rdzv-backend has no effect",
        "torchrun --tee has no effect",
    ]
