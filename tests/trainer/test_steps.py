from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import trainmaster as tm
from tests.trainer import plain_probe
from tests.trainer.ranks import ROOT, Ranks, fault_socket
from trainmaster.checkpoint.state.checkpoint_session import Session
from trainmaster.contract.wire import environment
from trainmaster.contract.wire.causes_and_exit_codes import ExitCode
from trainmaster.contract.wire.checkpoint_format import MANIFEST, directory_name
from trainmaster.contract.wire.fault_protocol import DISK_FULL
from trainmaster.errors import ConfigError
from trainmaster.rank.injected_faults import Fault, encode
from trainmaster.rank.reporter import Reporter
from trainmaster.train import user_loop
from trainmaster.train.async_transfer import Reading

SCRIPT = """
import os, pathlib, random, sys, time
import torch
import torch.distributed as dist
from torch import nn
import trainmaster as tm

if "MASTER_ADDR" in os.environ:
    dist.init_process_group("gloo")
torch.manual_seed(0)
rank = int(os.environ.get("RANK", "0"))

class Loader:
    position = 0
    def state_dict(self):
        return {"position": self.position, "rank": rank}
    def load_state_dict(self, state):
        assert state["rank"] == rank
        self.position = state["position"]
    def batch(self):
        self.position += 1
        return torch.full((4, 8), float(self.position + 100 * rank)) / 100 + torch.randn(4, 8)

model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 1))
if dist.is_initialized():
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
loader = Loader()
run = tm.init(checkpoint_dir=os.environ.get("FOLDER"))
state = tm.State(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader)
for step in run.steps(state, total=8, save_every=3):
    loss = model(loader.batch()).square().mean() + random.random() / 1000
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    run.report(loss=loss, tokens=32, lr=scheduler.get_last_lr()[0])
    # Steps that take no time would otherwise be far ahead of what is written behind them.
    while step == 4 and "AWAITED" in os.environ and not pathlib.Path(os.environ["AWAITED"]).exists():
        time.sleep(0.01)
    if step == 4 and "FILLED" in os.environ:
        pathlib.Path(os.environ["FILLED"]).touch()
    os.write(1, f"rank {rank} step {step} loss {loss.item():.9f}\\n".encode())  # one write: ranks share the file
os.write(1, f"finished {run.step}\\n".encode())
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.replace("random.random()", "random.Random(0).random()"))
    return str(path)


def lines(output: str, rank: int = 0) -> dict[int, str]:
    """step → loss as printed, of what a rank printed last."""
    words = [line.split() for line in output.splitlines() if line.startswith(f"rank {rank} step")]
    return {int(w[3]): w[5] for w in words}


COUNTING = """
import torch
import trainmaster as tm

run = tm.init()
for step in run.steps(tm.State(model=torch.nn.Linear(2, 2)), total=8, save_every=3):
    run.report(loss=torch.ones(()))
    print(f"rank 0 step {step} loss 1")
print(f"finished {run.step}")
"""


@pytest.mark.processes
def test_under_plain_python_it_only_counts_steps(ranks: Ranks, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(COUNTING)
    code, output = ranks.call(plain_probe.run, str(script))
    assert code == 0, output
    assert list(lines(output)) == list(range(1, 9))
    assert output.endswith("finished 8\n")
    assert [p.name for p in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.processes
def test_without_an_agent_it_saves_and_resumes_in_the_folder_that_it_is_given(
    ranks: Ranks, tmp_path: Path, script: str
) -> None:
    whole = ranks.run(tmp_path / "a", 1, {"FOLDER": str(tmp_path / "whole")}, script=script)
    assert whole.codes == [0], whole.output
    socket = tmp_path / "faults"
    faults = {environment.FAULTS: encode([Fault("exit", step=5, code=7)]), environment.FAULT_SOCKET: str(socket)}
    folder = tmp_path / "broken"
    env = {"FOLDER": str(folder), "AWAITED": str(folder / directory_name(3, 1) / MANIFEST), **faults}
    with fault_socket(socket):
        assert ranks.run(tmp_path / "b", 1, env, script=script).codes == [7]
        again = ranks.run(tmp_path / "b", 1, env, script=script)
    assert again.codes == [0], again.output
    assert min(lines(again.output)) == 4
    assert lines(again.output) == {s: loss for s, loss in lines(whole.output).items() if s >= 4}
    assert not (tmp_path / "a" / "metrics.jsonl").exists()


@pytest.mark.processes
def test_without_an_agent_a_script_whose_last_save_fails_does_not_end_with_0(
    ranks: Ranks, tmp_path: Path, script: str
) -> None:
    folder = tmp_path / "faults"
    folder.mkdir()
    full = {environment.FAULT_DIR: str(folder), "FILLED": str(folder / DISK_FULL)}
    ended = ranks.run(tmp_path / "a", 1, {"FOLDER": str(tmp_path / "saved"), **full}, script=script)
    assert ended.codes == [ExitCode.NOT_SAVED], ended.output
    assert (
        "trainmaster: the last save has failed: checkpoint step-8.r1, rank 0: No space left on device" in ended.output
    )
    assert "finished 8" not in ended.output


@pytest.mark.processes
def test_under_an_agent_two_ranks_resume_with_their_own_loaders_and_the_same_losses(
    ranks: Ranks, tmp_path: Path, script: str
) -> None:
    def env(name: str, round: int) -> dict[str, str]:
        return {
            environment.ROUND: str(round),
            environment.CHECKPOINT_DIR: str(tmp_path / name / "checkpoints"),
            environment.OUTPUT_DIR: str(tmp_path / name),
        }

    whole = ranks.run(tmp_path / "whole", 2, env("whole", 1), script=script, agent=True)
    assert whole.codes == [0, 0], whole.output
    stopped = ranks.run(tmp_path / "stopped", 2, env("stopped", 1), script=script, agent=True, stop_at=4, stop_bound=1)
    assert stopped.codes == [ExitCode.SAVED] * 2, stopped.output
    assert [m["step"] for m in stopped.said("saved")] == [4, 4]
    again = ranks.run(tmp_path / "stopped", 2, env("stopped", 2), script=script, agent=True)
    assert again.codes == [0, 0], again.output
    for rank in range(2):
        assert lines(again.output, rank) == {s: loss for s, loss in lines(whole.output, rank).items() if s > 4}
        assert again.records[rank].read().step == 8
    metrics = [json.loads(line) for line in (tmp_path / "stopped" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in metrics] == list(range(1, 9))
    assert set(metrics[-1]) == {"step", "round", "seconds", "loss", "tokens", "lr"}


def test_what_has_no_state_dict_cannot_be_registered() -> None:
    with pytest.raises(
        ConfigError, match=r"tm\.State\(loader=…\): a list has no state_dict and no load_state_dict\(\)"
    ):
        tm.State(model=nn.Linear(1, 1), loader=[1, 2])


def test_a_loop_that_is_left_early_has_published_what_it_reported(tmp_path: Path) -> None:
    run = tm.init(checkpoint_dir=tmp_path)
    model = nn.Linear(2, 2)
    for step in run.steps(tm.State(model=model), total=100, save_every=2):
        run.report(loss=torch.tensor(0.5))
        if step == 3:
            break
    assert run.step == 2
    assert (tmp_path / "step-2.r1" / "manifest.json").exists()


class Late(Reading):
    """A reading of numbers that arrive when somebody waits for them, as a device's do."""

    def arrived(self) -> bool:
        return False


def test_the_numbers_of_a_step_are_written_down_before_it_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    saved: list[tuple[int, list[int]]] = []
    monkeypatch.setattr(user_loop, "Reading", Late)
    monkeypatch.setattr(Reporter, "under_agent", True)
    monkeypatch.setattr(Reporter, "metrics", lambda self, **line: told.append(line["step"]))
    monkeypatch.setattr(Session, "save", lambda self, step, common: saved.append((step, [*told])))
    run = tm.init(tmp_path)
    for _ in run.steps(tm.State(model=nn.Linear(1, 1)), total=2, save_every=1):
        run.report(loss=torch.ones(()))
    assert saved == [(1, [1]), (2, [1, 2])]


def test_the_numbers_of_a_step_are_written_down_before_it_is_saved_to_memory() -> None:
    order: list[str] = []
    session: Any = SimpleNamespace(
        ram=True,
        interval=SimpleNamespace(every=1),
        boundary=lambda: None,
        due=lambda step: True,
        settle=lambda: None,
        await_copy=lambda: None,
        remember=lambda step, common: order.append("state"),
    )
    run: Any = SimpleNamespace(step=0, publish=lambda: order.append("numbers"))
    memory = user_loop.Memory(run, session, Reporter())
    try:
        memory.completed(1, 0.1)
    finally:
        memory.close()
    assert order == ["numbers", "state"]


def test_restoring_a_missing_object_is_told_in_words_and_ends_with_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def loop(**objects: Any) -> None:
        for _ in tm.init(checkpoint_dir=tmp_path).steps(tm.State(**objects), total=1):
            pass

    loop(model=nn.Linear(2, 2))
    with pytest.raises(SystemExit) as stop:
        loop(model=nn.Linear(2, 3))
    assert stop.value.code == ExitCode.CONFIG_ERROR
    assert "tensor model.weight has shape [2, 2], but [3, 2] is expected" in capsys.readouterr().err


@pytest.mark.processes
def test_the_example_of_an_own_loop_learns_and_resumes_where_it_was_ended(ranks: Ranks, tmp_path: Path) -> None:
    env = {environment.OUTPUT_DIR: str(tmp_path), environment.CHECKPOINT_DIR: str(tmp_path / "checkpoints")}
    example = str(ROOT / "examples" / "own_loop.py")
    stopped = ranks.run(
        tmp_path, 2, {**env, environment.ROUND: "1"}, script=example, agent=True, stop_at=120, stop_bound=1
    )
    assert stopped.codes == [ExitCode.SAVED] * 2, stopped.output
    again = ranks.run(tmp_path, 2, {**env, environment.ROUND: "2"}, script=example, agent=True)
    assert again.codes == [0, 0], again.output
    metrics = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in metrics] == list(range(1, 601))
    assert sum(line["accuracy"] for line in metrics[-50:]) / 50 > 0.9
