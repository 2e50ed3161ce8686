"""What ranks really get from their command: arguments, variables, another command after a restart."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.agent.world import World
from trainmaster.contract.wire import Cause, ExitCode

pytestmark = pytest.mark.processes

TOLD = "import os, sys; print('told', sys.argv[1:], os.environ.get('A'), flush=True)\n"
FAILS_ONCE = TOLD + "sys.exit(0 if '--resume' in sys.argv else 3)\n"


def told(world: World) -> list[str]:
    return sorted(line.partition("told ")[2] for line in world.log().splitlines() if "told " in line)


def test_the_old_launcher_gives_each_rank_its_number(make_world: Callable[..., World]) -> None:
    world = make_world(ranks=2)
    command = [
        "env",
        "A=1",
        "python",
        "-m",
        "torch.distributed.launch",
        "--nproc_per_node=2",
        world.script(TOLD),
        "--x",
    ]
    world.start(command, **world.without_torch())
    assert world.wait() == ExitCode.OK
    assert told(world) == ["['--local-rank=0', '--x'] 1", "['--local-rank=1', '--x'] 1"]


def test_a_restart_runs_the_restart_command(make_world: Callable[..., World]) -> None:
    world = make_world()
    script = world.script(FAILS_ONCE)
    again = json.dumps(["python", script, "--resume"])
    world.start(["python", script], TRAINMASTER_RESTART_COMMAND=again, **world.without_torch())
    assert world.wait() == ExitCode.OK
    assert told(world) == ["['--resume'] None", "[] None"]
    assert [verdict.exit_code for verdict in world.operator.verdicts] == [3]


def test_a_command_that_cannot_work_ends_the_agent_with_a_sentence(make_world: Callable[..., World]) -> None:
    world = make_world()
    world.start(["mpirun", "-np", "2", "python", "t.py"], **world.without_torch())
    assert world.wait() == ExitCode.CONFIG_ERROR
    assert world.log().startswith("trainmaster agent: mpirun starts processes of its own")


def test_a_zygote_starts_with_the_variables_that_a_command_sets(make_world: Callable[..., World]) -> None:
    world = make_world()
    command = ["env", "KMP_BLOCKTIME=1", "python", world.script(TOLD)]
    world.start(command, **world.zygote_without_torch())
    assert world.wait() == ExitCode.OK
    assert "KMP_BLOCKTIME" not in world.log(), "no note that its ranks can't be forked"


def test_a_script_does_not_see_how_launchers_are_looked_for(make_world: Callable[..., World]) -> None:
    world = make_world()
    script = world.script("import sys; print('told', [p for p in sys.path if 'injected' in p], flush=True)\n")
    world.start(["python", script], **world.without_torch())
    assert world.wait() == ExitCode.OK
    assert told(world) == ["[]"]


def test_what_has_no_effect_is_told(make_world: Callable[..., World]) -> None:
    world = make_world()
    world.start(["torchrun", "--max-restarts=3", world.script(TOLD)], **world.without_torch())
    assert world.wait() == ExitCode.OK
    assert "[agent] torchrun --max-restarts has no effect: spec.recovery says what is restarted" in world.log()


def test_a_launcher_in_a_shell_script_that_is_no_python_fails_the_job_by_name(make_world: Callable[..., World]) -> None:
    world = make_world(restarts=0)
    mpirun = world.folder / "mpirun"
    mpirun.symlink_to("/bin/sleep")
    world.start(["sh", world.script(f"{mpirun} 3600\n", "run.sh")], **world.without_torch())
    verdict = world.operator.wait_for_verdict()
    assert verdict.cause is Cause.CONFIG_ERROR
    assert verdict.message.startswith("mpirun starts processes of its own")
