"""A program that is executed as it is finds the addresses of its round in the Python interpreters below it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.agent.world import ROOT
from tests.frameworks.test_roster import Served
from trainmaster.agent import frameworks
from trainmaster.agent.frameworks.framework import Facts, numbers
from trainmaster.agent.zygote import child_setup
from trainmaster.contract.wire import environment
from trainmaster.contract.wire.causes_and_exit_codes import ExitCode
from trainmaster.contract.wire.channel import Channel
from trainmaster.contract.wire.progress_record import ProgressRecord
from trainmaster.rank import executed_rank_observation, failure_message, framework_joining

pytestmark = pytest.mark.processes

TELLS = "import os; print(os.environ['TF_CONFIG'])"
EXECUTES = """
import sys
sys.path.insert(0, {root!r})
from trainmaster.agent.zygote import child_setup
child_setup.execute(sys.argv[1:])
"""
"""What a fork of the zygote does that becomes a program."""


def rank(command: Sequence[str], facts: Facts) -> tuple[subprocess.Popen[str], Channel]:
    """Start a rank of TensorFlow as an agent executes it, with the channel that it speaks to."""
    record, (ours, theirs) = ProgressRecord.create(1, facts.rank), Channel.pair()
    env = {"PATH": os.environ["PATH"], **numbers(facts), environment.FRAMEWORK: "TensorFlow"}
    env |= {environment.ROUND: "1", environment.STORE: f"{facts.store_host}:{facts.store_port}"}
    env |= {environment.PROGRESS_FD: str(record.fd), environment.CHANNEL_FD: str(theirs.fileno())}
    fds = [record.fd, theirs.fileno()]
    env |= executed_rank_observation.variables(env)
    return subprocess.Popen(command, env=env, pass_fds=fds, stdout=subprocess.PIPE, text=True), ours


def test_a_shell_script_that_starts_one_python_after_the_other_gets_the_same_addresses_in_each(tmp_path: Path) -> None:
    served = Served()
    twice = ["sh", "-c", f'{sys.executable} -c "{TELLS}"; {sys.executable} -c "{TELLS}"']
    once = ["env", "X=1", sys.executable, "-c", TELLS]
    try:
        ranks = [rank(command, served.facts(number)) for number, command in enumerate((twice, once))]
        told = [process.communicate(timeout=120)[0].splitlines() for process, _ in ranks]
    finally:
        served.close()
    first, again, other = (json.loads(line) for line in (*told[0], *told[1]))
    assert first == again
    assert first["cluster"] == other["cluster"]
    assert [first["task"]["index"], other["task"]["index"]] == [0, 1]
    assert len(set(first["cluster"]["worker"])) == 2


def test_ranks_whose_shell_script_waits_for_rank_0_before_their_first_python_meet(tmp_path: Path) -> None:
    tells, prepared = f'{sys.executable} -c "{TELLS}"', tmp_path / "prepared"
    os.mkfifo(prepared)
    first, others = f"{tells} && echo yes > {prepared}", f"read < {prepared}; {tells}"
    executes = [sys.executable, "-I", "-c", EXECUTES.format(root=str(ROOT / "trainer")), "bash", "-c"]
    served = Served()
    ranks = []
    try:
        ranks += [rank([*executes, line], served.facts(number)) for number, line in enumerate((first, others))]
        told = [json.loads(process.communicate(timeout=60)[0]) for process, _ in ranks]
    finally:
        for process, _ in ranks:
            process.kill()
            process.wait()
        served.close()
    assert [one["task"]["index"] for one in told] == [0, 1]
    assert told[0]["cluster"] == told[1]["cluster"]


class Ended(BaseException):
    """The process has ended, or has become another program."""


@pytest.fixture
def became(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What a process of a rank has become: the name of a program, or its exit code."""
    became: list[object] = []

    def end(how: object, *_: object) -> None:
        became.append(how)
        raise Ended

    for name in ("execvp", "_exit"):
        monkeypatch.setattr(os, name, end)
    monkeypatch.setattr(os, "environ", {**os.environ, **numbers(Facts(0, 2)), environment.STORE: "127.0.0.1:1"})
    os.environ[environment.FRAMEWORK] = "TensorFlow"
    return became


def test_a_program_does_not_begin_without_the_addresses_of_its_round(
    monkeypatch: pytest.MonkeyPatch, became: list[object]
) -> None:
    def exchange(facts: Facts, own: str) -> list[str]:
        raise ConnectionResetError("the store of this round, 127.0.0.1:1, ended before all ranks had come")

    monkeypatch.setattr(framework_joining.rank_addresses, "exchange", exchange)
    told: list[tuple[str, bool]] = []
    monkeypatch.setattr(failure_message, "tell", lambda _, words, __, **given: told.append((words, given["cascade"])))
    with pytest.raises(Ended):
        child_setup.execute(["bash", "run.sh"])
    assert became == [ExitCode.PEER_LOST]
    ((words, cascade),) = told
    assert "ended before all ranks had come" in words
    assert cascade


def test_a_rank_with_an_entry_meets_the_others_in_its_own_interpreter(
    monkeypatch: pytest.MonkeyPatch, became: list[object]
) -> None:
    monkeypatch.setattr(framework_joining.rank_addresses, "exchange", lambda *_: pytest.fail("it asked"))
    os.environ["TRAINMASTER_ENTRY"] = "{}"
    with pytest.raises(Ended):
        child_setup.execute(["python", "-c", ""])
    assert became == ["python"]


def test_what_a_shell_script_exports_does_not_change_where_its_ranks_meet(
    monkeypatch: pytest.MonkeyPatch, became: list[object]
) -> None:
    asked: list[Facts] = []

    def exchange(facts: Facts, own: str) -> list[str]:
        asked.append(facts)
        return ["10.0.0.7:21001", own]

    monkeypatch.setattr(framework_joining.rank_addresses, "exchange", exchange)
    own = Facts(1, 2, store_host="10.0.0.7", store_port=7000)
    os.environ |= {
        environment.NUMBERS: json.dumps(numbers(own)),
        "MASTER_PORT": "29500",
        "WORLD_SIZE": "8",
        "RANK": "0",
    }
    framework_joining.join(frameworks.find("TensorFlow"))
    assert asked == [own]
    assert json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1
