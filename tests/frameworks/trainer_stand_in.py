"""A stand-in for Trainer and its ranks, and checkpoints in the formats that it writes."""

from __future__ import annotations

import json
import struct
import types
import zipfile
from pathlib import Path
from typing import Any

from trainmaster.agent.frameworks.trainer_checkpoints import View


class Trainer:
    """Keeps what it is asked for. `train` has the signature of the real one."""

    hp_search_backend: Any = None

    def __init__(self, output: Path, rank: int = 0, ranks: int = 1) -> None:
        self.args = types.SimpleNamespace(
            output_dir=str(output), process_index=rank, local_process_index=rank, world_size=ranks
        )

    def train(self, resume_from_checkpoint: Any = None, trial: Any = None, ignored: Any = None) -> Any:
        return resume_from_checkpoint


def save(output: Path, step: int, ranks: int = 1) -> Path:
    """Write a checkpoint as Trainer does."""
    folder = output / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    header = json.dumps({"weight": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    generators = ["rng_state.pth"] if ranks == 1 else [f"rng_state_{rank}.pth" for rank in range(ranks)]
    for name in ("optimizer.pt", "training_args.bin", *generators):
        with zipfile.ZipFile(folder / name, "w") as archive:
            archive.writestr("data.pkl", bytes(100))
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return folder


def cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def view(*steps: int, **more: Any) -> View:
    """Return what a rank sees that has whole checkpoints of this job."""
    seen = frozenset(steps)
    return View(begun=True, found=seen, own=seen, whole=seen, complete=seen, **more)


class Group:
    """torch.distributed, where the other ranks see `others`."""

    def __init__(self, *others: View) -> None:
        self.others = others

    def is_initialized(self) -> bool:
        return True

    def all_gather_object(self, found: list[Any], own: Any) -> None:
        found[:] = [own, *self.others]
