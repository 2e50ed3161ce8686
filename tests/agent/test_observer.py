"""Steps that are seen of a script: those that it takes itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

TRAINS = """
import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
get_optimizer_state_dict(model, optimizer)
for _ in range(2):
    model(torch.ones(2)).sum().backward()
    optimizer.step()
"""
WATCHED = f"""
import os
from trainmaster.agent import observer
from trainmaster.contract.wire import ProgressRecord, environment
from trainmaster.contract.wire.channel import Channel
record, (channel, _) = ProgressRecord.create(1, 0), Channel.pair()
os.environ.update({{environment.PROGRESS_FD: str(record.fd), environment.CHANNEL_FD: str(channel.fileno())}})
observer.install(own_loop=False)
{TRAINS}
print("steps:", record.read().step)
"""


def test_a_step_that_only_fills_an_optimizers_state_is_none(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", WATCHED], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout == "steps: 2\n", done.stderr
