"""The weights of any model of a checkpoint, as one file that plain Python loads."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.trainer.test_huggingface import CONFIG, checkpoint, loaded
from trainmaster import models
from trainmaster.contract.config import ModelConfig
from trainmaster.errors import ConfigError
from trainmaster.tools.huggingface import exporting
from trainmaster.tools.huggingface.exporting import export

SMALL = {"layers": 1, "width": 8, "heads": 1}
GPT = ModelConfig(name="gpt", options=SMALL)


def test_a_users_own_model_is_written_from_what_its_checkpoint_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "from torch import nn\n\ndef build(options):\n    return nn.Linear(options['context'], 2)\n"
    (tmp_path / "own_model_of_an_export.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    own = ModelConfig(name="own_model_of_an_export:build", options={"context": 8})
    path = checkpoint(tmp_path / "checkpoints", own)
    export(path, tmp_path / "out")
    state = loaded(path, own).state_dict()
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert found.keys() == state.keys()
    assert all(torch.equal(tensor, found[name]) for name, tensor in state.items())


@pytest.mark.parametrize(
    ("config", "form"),
    [
        (GPT, None),
        (ModelConfig(name="moe", options=SMALL), None),
        (ModelConfig(name="bert", options=SMALL), None),
        (ModelConfig(name="cnn"), None),
        (ModelConfig(name="llama", options={**SMALL, "reversible": True}), None),
        (CONFIG, exporting.TRAINMASTER),
    ],
    ids=lambda value: str(getattr(value, "name", value)),
)
def test_what_is_loaded_by_its_names_is_the_model_that_was_trained(
    tmp_path: Path, config: ModelConfig, form: str | None
) -> None:
    path = checkpoint(tmp_path / "checkpoints", config)
    said = export(path, tmp_path / "out", form=form)
    assert set(os.listdir(tmp_path / "out")) == {"model.json", "model.safetensors"}
    assert f"the name and options of model {config.name} in model.json" in said

    described = json.loads((tmp_path / "out" / "model.json").read_text())
    model = models.build(models.ModelConfig(**described), seed=0)
    model.load_state_dict(load_file(tmp_path / "out" / "model.safetensors"))
    expected = loaded(path, config).state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())


def test_only_tensors_of_the_model_are_read_and_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = checkpoint(tmp_path / "checkpoints", GPT)
    names: list[list[str]] = []
    read = exporting.load_tensors

    def watched(storage: Any, directory: str, manifest: Any, targets: dict[str, torch.Tensor]) -> None:
        names.append([*targets])
        read(storage, directory, manifest, targets)

    monkeypatch.setattr(exporting, "load_tensors", watched)
    export(path, tmp_path / "out")
    assert sorted(names) == sorted([f"model.{name}"] for name in models.build(GPT, 0).state_dict())


def test_an_export_that_fails_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = checkpoint(tmp_path / "checkpoints", GPT)

    def fails(storage: Any, directory: str, manifest: Any, targets: dict[str, torch.Tensor]) -> None:
        if "model.head.weight" in targets:
            raise OSError("the disk is gone")

    monkeypatch.setattr(exporting, "load_tensors", fails)
    with pytest.raises(OSError, match="the disk is gone"):
        export(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def _without_tensor(manifest: dict[str, Any]) -> None:
    del manifest["tensors"]["model.norm.weight"]


def _unknown_model(manifest: dict[str, Any]) -> None:
    manifest["model"]["name"] = "gtp"


@pytest.mark.parametrize(
    ("change", "file_bytes", "sentence"),
    [
        (_without_tensor, None, "can't be exported: it has no tensor model.norm.weight"),
        (_unknown_model, None, r"checkpoint .*step-5.r1: model.name: .*gtp"),
        (dict, 10**9, "--file-gb: only Hugging Face's format can have several files; leave it out"),
    ],
    ids=["a tensor is missing", "an unknown model", "files of a size"],
)
def test_what_can_not_be_exported_is_refused_in_one_sentence(
    tmp_path: Path, change: Any, file_bytes: int | None, sentence: str
) -> None:
    path = checkpoint(tmp_path / "checkpoints", GPT)
    manifest = json.loads((path / "manifest.json").read_text())
    change(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ConfigError, match=sentence) as refused:
        export(path, tmp_path / "out", file_bytes)
    assert len(str(refused.value).splitlines()) == 1
    assert not (tmp_path / "out").exists()
