"""`trainmaster export` and `import`, from the command line to the files; and a job that is told of its checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from tests.cli import warm_child
from tests.cli.conftest import WriteJob
from trainmaster_operator.cli.main import main
from trainmaster_operator.cli.this_machine import trainer_process

MODEL = {
    "name": "llama",
    "options": {"layers": 2, "heads": 2, "width": 16, "vocabulary": 300, "rope_theta": 10000.0, "context": 20},
}


def hugging_face(folder: Path) -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.LlamaConfig(**sizes, vocab_size=300, max_position_embeddings=20, rms_norm_eps=1e-5)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)


@pytest.mark.processes
def test_a_model_goes_in_and_out_by_the_command_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hugging_face(tmp_path / "hf")
    assert main(["import", str(tmp_path / "hf"), str(tmp_path / "checkpoints")]) == 0
    monkeypatch.setattr(trainer_process, "run", warm_child.run)  # one process of its own will do
    said = capfd.readouterr().out
    path = tmp_path / "checkpoints" / "step-0.r1"
    assert f"resume: {path}" in said
    assert main(["export", str(path), str(tmp_path / "out")]) == 0
    assert "21 tensors" in capfd.readouterr().out
    transformers.LlamaForCausalLM.from_pretrained(tmp_path / "out", local_files_only=True)
    capfd.readouterr()
    assert main(["export", str(path), str(tmp_path / "out")]) == 2
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err == f"trainmaster: {tmp_path / 'out'} is not empty; an empty or a new folder is expected\n"
    assert main(["import", str(tmp_path / "gone"), str(tmp_path / "new")]) == 2
    assert capfd.readouterr().err.count("\n") == 1
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("size", "shown"), [("0", "0.0"), ("inf", "inf"), ("nan", "nan")])
def test_a_file_size_that_is_none_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], size: str, shown: str
) -> None:
    assert main(["export", str(tmp_path), str(tmp_path / "out"), "--file-gb", size]) == 2
    assert capsys.readouterr().err == f"trainmaster: --file-gb: must be above 0 and finite, not {shown}\n"


@pytest.mark.parametrize(
    ("model", "sentences"),
    [
        (
            {"name": "llama", "options": {**MODEL["options"], "width": 32, "rope_theta": 5.0, "context": 40}},
            [
                "spec.training.model.options.width: is 32, but checkpoint {path} was made with 16; 16 would be right",
                "spec.training.model.options.rope_theta: is 5.0, but checkpoint {path} was made with 10000.0; 10000.0 "
                "would be right",
            ],
        ),
        (
            {"name": "gpt", "options": {}},
            ["spec.training.model.name: is gpt, but checkpoint {path} was made with llama; llama would be right"],
        ),
    ],
)
def test_a_checkpoint_of_another_model_is_refused_before_anything_starts(
    tmp_path: Path,
    write_job: WriteJob,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    model: dict[str, Any],
    sentences: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "step-3.r1"
    path.mkdir()
    (path / "manifest.json").write_text(json.dumps({"step": 3, "model": MODEL}))
    file = write_job(spec__training__model=model, spec__checkpoint={"resume": str(path)})
    assert main(["run", str(file)]) == 2
    lines = [line.partition("spec.") for line in capsys.readouterr().err.splitlines()]
    assert sorted(f"spec.{line[2]}" for line in lines) == sorted(s.format(path=path) for s in sentences)
    assert not (tmp_path / "runs").exists()
