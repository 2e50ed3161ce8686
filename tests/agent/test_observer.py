"""Steps that are seen of a script: those that it takes itself."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainmaster.contract.wire import profile_request
from trainmaster.rank import script_saves

TRAINS = """
import torch, uncompiled
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
get_optimizer_state_dict(model, optimizer)
for _ in range(2):
    model(torch.ones(2)).sum().backward()
    optimizer.step()
"""
LOADS = """
import torch
torch.save({}, "pretrained.pt")
os.utime("pretrained.pt", (1000, 1000))
torch.load("pretrained.pt")
"""
WATCHED = """
import os
from trainmaster.rank import script_observer
from trainmaster.contract.wire import ProgressRecord, environment
from trainmaster.contract.wire.channel import Channel
record, (channel, _) = ProgressRecord.create(1, 0), Channel.pair()
os.environ.update({environment.PROGRESS_FD: str(record.fd), environment.CHANNEL_FD: str(channel.fileno())})
script_observer.install(own_loop=False)
PROGRAM
print("steps:", record.read().step, "loaded:", bool(record.read().flags & 8))
"""
STEPPED_AT = 5000
UNCOMPILED = Path(__file__).parents[1] / "e2e" / "scripts" / "uncompiled.py"
"""Torch without its compiler, whose import would take most of the time."""


def watched(folder: Path, program: str, **variables: str) -> str:
    """What a watched program that had stepped before, at STEPPED_AT, tells of its steps."""
    shutil.copy(UNCOMPILED, folder)
    code = WATCHED.replace("PROGRAM", program)
    env = {**os.environ, "TRAINMASTER_FIRST_STEP_AT": str(STEPPED_AT), **variables}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


FILLS = """
import torch, uncompiled
weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.AdamW([weight], lr=torch.tensor(0.0))
weight.grad = torch.zeros(2)
optimizer.step()
for step in range(3):
    optimizer.state[weight]["step"] = optimizer.state[weight]["step"] * 0 + 4 + step
    optimizer.param_groups[0]["lr"] = 0.1
    weight.grad = torch.ones(2)
    optimizer.step()
warmed = torch.optim.AdamW([weight], lr=0.0)
for _ in range(9):
    warmed.step()
"""


@pytest.mark.processes
def test_a_step_with_which_a_program_itself_fills_an_optimizers_state_is_none(tmp_path: Path) -> None:
    """A first step of a warm-up, which has no rate either, is one."""
    assert watched(tmp_path, FILLS) == "steps: 16 loaded: False"


NOTHING_FLOWS = """
import torch, uncompiled
trunk, head = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
torch.nn.init.zeros_(head.weight)
optimizer = torch.optim.SGD(trunk.parameters(), lr=0.0)
for step in range(3):
    optimizer.zero_grad()
    head(trunk(torch.ones(1, 2))).sum().backward()
    optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.1
"""


@pytest.mark.processes
def test_the_first_step_of_a_warm_up_counts_on_a_rank_that_no_gradient_has_reached_yet(tmp_path: Path) -> None:
    """Behind the head of the last stage, which begins with zeros; that stage itself has gradients, and counts it."""
    assert watched(tmp_path, NOTHING_FLOWS) == "steps: 3 loaded: False"


NESTED = """
import torch, uncompiled
weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight], lr=0.1)
class Distributed(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)
distributed = Distributed([weight], lr=0.1)
def fail():
    raise ValueError
for _ in range(3):
    try:
        distributed.step(fail)
    except ValueError:
        pass
    distributed.step()
"""


SENDS = """
import sys, types
import torch, uncompiled
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
(folder := __import__("pathlib").Path("horovod/torch")).mkdir(parents=True)
(folder.parent / "__init__.py").touch()
(folder / "__init__.py").write_text("from horovod.torch.functions import broadcast_optimizer_state")
(folder / "functions.py").write_text("def broadcast_optimizer_state(optimizer, root_rank):\\n    optimizer.step()\\n")
sys.path.insert(0, "")
import horovod.torch as hvd
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
for _ in range(2):
    optimizer.step()
"""


@pytest.mark.processes
def test_a_step_that_fills_an_optimizers_state_before_horovod_sends_it_is_none(tmp_path: Path) -> None:
    assert watched(tmp_path, SENDS) == "steps: 2 loaded: False"


@pytest.mark.processes
def test_an_optimizer_that_calls_the_step_of_its_parent_class_takes_one_step(tmp_path: Path) -> None:
    """As Horovod's do. A step that raised is none, and hides no later one."""
    assert watched(tmp_path, NESTED) == "steps: 3 loaded: False"


@pytest.mark.processes
def test_pretrained_weights_are_no_save_and_a_step_that_only_fills_an_optimizers_state_is_none(tmp_path: Path) -> None:
    assert watched(tmp_path, LOADS + TRAINS) == "steps: 2 loaded: False"


@pytest.mark.parametrize(
    ("written_at", "stepped_at", "may_be"),
    [(STEPPED_AT + 60, str(STEPPED_AT), True), (STEPPED_AT - 60, str(STEPPED_AT), False), (STEPPED_AT - 60, "", True)],
)
def test_a_file_from_before_the_first_step_is_no_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written_at: int, stepped_at: str, may_be: bool
) -> None:
    monkeypatch.setenv("TRAINMASTER_FIRST_STEP_AT", stepped_at)
    path = tmp_path / "file.pt"
    path.touch()
    os.utime(path, (written_at, written_at))
    assert script_saves.may_be_a_save(str(path)) is script_saves.may_be_a_save(path) is may_be
    with open(path, "rb") as file:
        assert script_saves.may_be_a_save(file) is may_be


class Stream(io.BytesIO):
    """A file of an object store, whose library has its own error for what is not there."""

    def fileno(self) -> int:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("file", "may_be"), [(io.BytesIO(), True), (None, True), (Stream(), True), ("/nowhere/file.pt", False)]
)
def test_of_a_buffer_it_is_not_known_whether_it_was_saved(
    monkeypatch: pytest.MonkeyPatch, file: Any, may_be: bool
) -> None:
    monkeypatch.setenv("TRAINMASTER_FIRST_STEP_AT", str(STEPPED_AT))
    assert script_saves.may_be_a_save(file) is may_be


ENGINE = """
import sys, types
import torch, uncompiled
struck = []
sys.modules["trainmaster.rank.injected_faults"] = faults = types.ModuleType("injected_faults")
faults.gradients = list
faults.at_step = lambda step, numbers, after: struck.append((step, len(numbers())))
(folder := __import__("pathlib").Path("deepspeed/runtime")).mkdir(parents=True)
(folder.parent / "__init__.py").touch()
(folder / "__init__.py").touch()
(folder / "engine.py").write_text('''
class DeepSpeedEngine:  # as DeepSpeed's with ZeRO: one call of the optimizer for each group of parameters
    def __init__(self, optimizer, steps=0):
        self.optimizer, self.micro_steps, self.global_steps, self.overflow = optimizer, 0, steps, False
    def step(self):
        self.micro_steps += 1
        if self.micro_steps % 2 == 0:  # a boundary of gradient accumulation
            self._take_model_step(None)
    def _take_model_step(self, lr_kwargs):
        groups = self.optimizer.param_groups
        for group in [] if self.overflow else groups:
            self.optimizer.param_groups = [group]
            self.optimizer.step()
        self.optimizer.param_groups = groups
        self.global_steps += 1
''')
sys.path.insert(0, "")
from deepspeed.runtime.engine import DeepSpeedEngine
weights = [torch.nn.Parameter(torch.ones(2)) for _ in range(3)]
adam = torch.optim.AdamW([{"params": [weight]} for weight in weights], lr=0.0)
for weight in weights:
    weight.grad = torch.zeros(2)
engine = DeepSpeedEngine(adam, steps=STEPS)
for micro_step in range(10):
    engine.overflow = micro_step == 7
    engine.step()
print("began after:", record.read().resumed_step, "struck:", struck)
"""


@pytest.mark.processes
@pytest.mark.parametrize(("framework", "before"), [("DeepSpeed", 0), ("PyTorch", 30)])
def test_a_step_of_deepspeeds_engine_is_one_step_with_any_number_of_groups(
    tmp_path: Path, framework: str, before: int
) -> None:
    """Also the first step of a warm-up, and one that skips the optimizer. A fault strikes in the gradients of the first
    group, in each step once."""
    place = {"RANK": "0", "WORLD_SIZE": "1", "TRAINMASTER_FRAMEWORK": framework, "TRAINMASTER_STORE": "127.0.0.1:1"}
    said = watched(tmp_path, ENGINE.replace("STEPS", str(before)), **place)
    struck = [(before + step, 0 if step == 4 else 1) for step in range(1, 6)]
    assert said == f"began after: {before} struck: {struck}\nsteps: {before + 5} loaded: False"


RESUMES_GAN = """
import torch, uncompiled
weight = torch.nn.Parameter(torch.ones(2))
weight.grad = torch.ones(2)
def restored(steps):
    optimizer = torch.optim.AdamW([weight])
    of_weight = {"step": torch.tensor(float(steps)), "exp_avg": torch.ones(2), "exp_avg_sq": torch.ones(2)}
    optimizer.load_state_dict({**optimizer.state_dict(), "state": {0: of_weight}})
    return optimizer
generator, critic = restored(16), restored(80)
generator.step()
print("first:", record.read().step, "began after:", record.read().resumed_step)
for _ in range(5):
    critic.step()
"""


@pytest.mark.processes
def test_a_restored_program_goes_on_from_the_optimizer_that_has_stepped_most_often(tmp_path: Path) -> None:
    assert watched(tmp_path, RESUMES_GAN) == "first: 81 began after: 80\nsteps: 85 loaded: False"


RECORDS = """
import torch  # with its compiler, which its profiler imports
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    model(torch.ones(2)).sum().backward()
    optimizer.step()
"""


@pytest.mark.processes
def test_steps_that_somebody_asks_for_are_recorded_by_torchs_profiler(tmp_path: Path) -> None:
    """The trace opens in TensorBoard's plugin for torch: its name ends as that expects, and it names the steps."""
    profile_request.ask(tmp_path, 2, "0123456789ab")
    place = {"RANK": "0", "WORLD_SIZE": "1", "TRAINMASTER_FRAMEWORK": "PyTorch", "TRAINMASTER_STORE": "127.0.0.1:1"}
    said = watched(tmp_path, RECORDS, TRAINMASTER_OUTPUT_DIR=str(tmp_path), TRAINMASTER_ROUND="3", **place)
    folder = tmp_path / "profile" / "steps-3-4.r3"
    assert said.splitlines()[0].startswith(
        f"profile of steps 3 to 4: the profiler of PyTorch has written its records into {folder}, which"
    )
    assert said.splitlines()[1:] == ["steps: 6 loaded: False"]
    (trace,) = folder.iterdir()
    assert re.fullmatch(r"rank-00000\.\d+\.pt\.trace\.json\.gz", trace.name)
    with gzip.open(trace, "rt") as file:
        names = {event.get("name") for event in json.load(file)["traceEvents"]}
    assert {"ProfilerStep#3", "ProfilerStep#4", "aten::linear"} <= names
    assert not {"ProfilerStep#2", "ProfilerStep#5"} & names
    assert not (tmp_path / profile_request.FILE).exists()


COMPILES = """
import warnings
warnings.simplefilter("error")
import torch
model = torch.nn.Linear(2, 2)
LINE
assert record.read().built_ns > 0
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    "line",
    [
        "model.compile(fullgraph=True, backend='eager'); model(torch.ones(2))",
        "torch._dynamo.reset(); torch.compile(lambda x: model(x) + 1, fullgraph=True, backend='eager')(torch.ones(2))",
        "torch.compile(model, fullgraph=True, backend='eager')(torch.ones(2))",
    ],
    ids=["in place", "a function", "a module"],
)
def test_torchs_compiler_compiles_a_first_forward_without_a_break_or_a_warning(tmp_path: Path, line: str) -> None:
    """It cannot compile a hook on all modules, and warns of one."""
    assert watched(tmp_path, COMPILES.replace("LINE", line)) == "steps: 0 loaded: False"


EVALUATES = """
import torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(2)).sum().backward()
optimizer.step()

def evaluate(x):
    model.eval()
    return model(x)

torch.compile(evaluate, fullgraph=True, backend="eager")(torch.ones(2))
assert not model.training
"""


@pytest.mark.processes
def test_torchs_compiler_compiles_a_function_that_turns_to_evaluation(tmp_path: Path) -> None:
    assert watched(tmp_path, EVALUATES) == "steps: 1 loaded: False"
