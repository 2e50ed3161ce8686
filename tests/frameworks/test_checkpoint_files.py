"""Which checkpoints of Trainer are whole."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.frameworks.trainer_stand_in import cut, save
from trainmaster.agent.frameworks import trainer_checkpoints


def test_a_checkpoint_without_its_last_file_or_with_a_missing_shard_is_half_written(tmp_path: Path) -> None:
    folder = save(tmp_path, 10)
    assert trainer_checkpoints.is_whole(folder)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}))
    assert not trainer_checkpoints.is_whole(folder)
    index.unlink()
    (folder / "part").mkdir()
    (folder / "part" / "__0_0.distcp").touch()
    assert not trainer_checkpoints.is_whole(folder)
    (folder / "part" / ".metadata").touch()
    assert trainer_checkpoints.is_whole(folder)
    (folder / "checkpoint-is-incomplete.txt").touch()  # Trainer's own mark of a save because of a SIGTERM
    assert not trainer_checkpoints.is_whole(folder)
    (folder / "checkpoint-is-incomplete.txt").unlink()
    (folder / "trainer_state.json").unlink()
    assert not trainer_checkpoints.is_whole(folder)


@pytest.mark.parametrize(
    "name",
    [
        "scheduler.pt",
        "scaler.pt",
        "optimizer.bin",
        "optimizer_0_rank1.bin",
        "rng_state_3.pth",
        "pytorch_model.bin",
        "pytorch_model-00001-of-00002.bin",
        "pytorch_model_fsdp_rank1.bin",
        "pytorch_model.fp16.bin",
        "adapter_model.bin",
        "rank0-of-2-optimizer.pt",
        "global_step10/mp_rank_00_model_states.pt",
        "global_step10/zero_pp_rank_0_mp_rank_00_model_states.pt",
        "global_step10/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt",
        "global_step10/layer_03-model_00-model_states.pt",
        "global_step10/layer_1_expert_2_mp_rank_00_model_states.pt",
        "global_step10/expp_rank_0_mp_rank_00_optim_states.pt",
    ],
)
def test_files_that_trainer_and_its_libraries_write_are_judged(tmp_path: Path, name: str) -> None:
    folder = save(tmp_path, 10)
    file = folder / name
    file.parent.mkdir(exist_ok=True)
    shutil.copy(folder / "training_args.bin", file)
    assert trainer_checkpoints.is_whole(folder)
    cut(file)
    assert not trainer_checkpoints.is_whole(folder)
