"""Checkpoints as models of Hugging Face's transformers, and back."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.trainer.job import Job
from tests.trainer.ranks import Ranks
from trainmaster import models
from trainmaster.checkpoint.files import checkpoint_manifest, lineage
from trainmaster.checkpoint.files.storage import PosixStorage
from trainmaster.checkpoint.state import capture, restore_objects
from trainmaster.checkpoint.state.storage_saver import Saver
from trainmaster.contract.config import ModelConfig
from trainmaster.contract.wire import environment
from trainmaster.contract.wire.checkpoint_format import Lineage
from trainmaster.errors import ConfigError
from trainmaster.tools.huggingface import exporting
from trainmaster.tools.huggingface.exporting import export
from trainmaster.tools.huggingface.importing import import_

OPTIONS = {
    "layers": 2,
    "heads": 4,
    "kv_heads": 2,
    "width": 32,
    "hidden": 48,
    "vocabulary": 300,
    "context": 64,
    "rope_theta": 500.0,
    "norm_eps": 1e-3,
}
CONFIG = ModelConfig(name="llama", options=OPTIONS)
GB = 10**9


def checkpoint(root: Path, config: ModelConfig = CONFIG, seed: int = 4) -> Path:
    """Of one process: a model whose norms aren't ones, and what its optimizer would have."""
    model = models.build(config, seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(torch.linspace(0, 1, parameter.numel()))
    storage = PosixStorage(root)
    lineage.begin(storage, Lineage(1, None))
    saver = Saver(storage.root, rank=0, world_size=1, round=1)
    common = {"model": models.described(config)}
    saver.save(5, capture.capture({"model": model, "optimizer": torch.optim.AdamW(model.parameters())}, 0), common)
    saver.drain()
    return root / "step-5.r1"


def loaded(path: Path, config: ModelConfig = CONFIG) -> torch.nn.Module:
    model = models.build(config, seed=99)
    storage = PosixStorage(path.parent)
    with torch.no_grad():
        restore_objects.restore(
            {"model": model}, storage, path.name, checkpoint_manifest.read_manifest(storage, path.name), 0
        )
    return model


def tokens(vocabulary: int = OPTIONS["vocabulary"], time: int = OPTIONS["context"]) -> torch.Tensor:
    return torch.randint(0, vocabulary, (3, time), generator=torch.Generator().manual_seed(2))


def theirs(folder: Path) -> Any:
    model, about = transformers.LlamaForCausalLM.from_pretrained(
        folder, output_loading_info=True, dtype=torch.float32, local_files_only=True
    )
    assert not about["missing_keys"]
    assert not about["unexpected_keys"]
    return model.eval()


def files(folder: Path) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() for entry in folder.iterdir()}


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_transformers_computes_the_same_logits_from_an_export(tmp_path: Path, kv_heads: int) -> None:
    config = ModelConfig(name="llama", options={**OPTIONS, "kv_heads": kv_heads})
    path = checkpoint(tmp_path / "checkpoints", config)
    export(path, tmp_path / "out", 5 * GB)
    assert set(os.listdir(tmp_path / "out")) == {"config.json", "model.safetensors"}
    with torch.no_grad():
        expected, found = loaded(path, config)(tokens()), theirs(tmp_path / "out")(tokens()).logits
    assert expected.std() > 0.1
    assert (expected - found).abs().max() < 1e-5


def test_generation_ends_at_no_token_that_nobody_named(tmp_path: Path) -> None:
    export(checkpoint(tmp_path / "checkpoints"), tmp_path / "out", 5 * GB)
    model = theirs(tmp_path / "out")
    assert model.generation_config.eos_token_id is None
    assert model.config.bos_token_id is None


def test_many_files_with_an_index_hold_what_one_does(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "checkpoints")
    export(path, tmp_path / "one", 5 * GB)
    export(path.parent, tmp_path / "many", 50_000)
    shards = sorted((tmp_path / "many").glob("*.safetensors"))
    assert len(shards) > 2
    assert all(shard.stat().st_size < 52_000 for shard in shards)
    joined = {name: tensor for shard in shards for name, tensor in load_file(shard).items()}
    one = load_file(tmp_path / "one" / "model.safetensors")
    assert joined.keys() == one.keys()
    assert all(torch.equal(joined[name], tensor) for name, tensor in one.items())
    index = json.loads((tmp_path / "many" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(t.numel() * t.element_size() for t in one.values())
    with torch.no_grad():
        assert torch.equal(theirs(tmp_path / "many")(tokens()).logits, theirs(tmp_path / "one")(tokens()).logits)


@pytest.mark.parametrize("file_bytes", [5 * GB, 50_000])
def test_what_was_exported_and_imported_is_bit_by_bit_what_it_was(tmp_path: Path, file_bytes: int) -> None:
    path = checkpoint(tmp_path / "checkpoints")
    export(path, tmp_path / "out", file_bytes)
    import_(tmp_path / "out", tmp_path / "imported")
    back = loaded(tmp_path / "imported" / "step-0.r1").state_dict()
    assert all(torch.equal(tensor, back[name]) for name, tensor in loaded(path).state_dict().items())
    manifest = checkpoint_manifest.read_manifest(PosixStorage(tmp_path / "imported"), "step-0.r1")
    assert manifest.model == models.described(CONFIG)
    export(tmp_path / "imported", tmp_path / "again", file_bytes)
    assert files(tmp_path / "again") == files(tmp_path / "out")


def hugging_face(folder: Path, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """A model that transformers has made and saved."""
    torch.manual_seed(6)
    config = transformers.LlamaConfig(
        **{
            "hidden_size": 32,
            "intermediate_size": 40,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 50,
            "max_position_embeddings": 64,
            "initializer_range": 0.3,
            **changes,
        }
    )
    model = transformers.LlamaForCausalLM(config).to(dtype).eval()
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": True}, {"rms_norm_eps": 0.01}], ids=str)
def test_an_imported_model_computes_the_logits_that_transformers_does(tmp_path: Path, changes: dict[str, Any]) -> None:
    model = hugging_face(tmp_path / "hf", **changes)
    said = import_(tmp_path / "hf", tmp_path / "imported")
    assert ("tied" in said) == bool(changes.get("tie_word_embeddings"))
    described = json.loads(next(line for line in said.splitlines() if "model:" in line).partition("model: ")[2])
    ours = loaded(tmp_path / "imported" / "step-0.r1", ModelConfig.model_validate(described))
    with torch.no_grad():
        expected, found = model(tokens(50)).logits, ours(tokens(50))
    assert expected.std() > 0.1
    assert (expected - found).abs().max() < 1e-5


def test_the_rotary_base_of_new_and_of_old_config_files_is_taken(tmp_path: Path) -> None:
    hugging_face(tmp_path / "hf", rope_parameters={"rope_type": "default", "rope_theta": 500_000.0})
    file = tmp_path / "hf" / "config.json"
    config = json.loads(file.read_text())
    old = {k: v for k, v in config.items() if k != "rope_parameters"} | {"rope_theta": 123.0, "rope_scaling": None}
    for content, base in ((config, 500_000.0), (old, 123.0)):
        file.write_text(json.dumps(content))
        assert f'"rope_theta": {base}' in import_(tmp_path / "hf", tmp_path / f"imported-{base}")


def test_half_precision_is_widened(tmp_path: Path) -> None:
    model = hugging_face(tmp_path / "hf", torch.bfloat16)
    import_(tmp_path / "hf", tmp_path / "imported")
    manifest = checkpoint_manifest.read_manifest(PosixStorage(tmp_path / "imported"), "step-0.r1")
    assert {tensor.dtype for tensor in manifest.tensors.values()} == {"F32"}
    config = ModelConfig.model_validate(manifest.model)
    head = loaded(tmp_path / "imported" / "step-0.r1", config).get_submodule("head").weight
    assert torch.equal(head, model.lm_head.weight.float())


def change_config(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return change


def change_tensors(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def changed(folder: Path) -> None:
        file = folder / "model.safetensors"
        content = load_file(file)
        change(content)
        save_file(content, file, {"format": "pt"})

    return changed


def _only_a_pickle(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")


def _cut(folder: Path) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-8])


def _index(**weight_map: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))

    return write


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (change_config(rope_scaling={"rope_type": "llama3"}), "rope_scaling of type 'llama3' isn't supported"),
        (change_config(rope_parameters={"rope_type": "yarn"}), "rope_parameters of type 'yarn' isn't supported"),
        (change_config(attention_bias=True), "attention_bias True isn't supported, only False"),
        (change_config(mlp_bias=True), "mlp_bias True isn't supported, only False"),
        (change_config(hidden_act="gelu"), "hidden_act 'gelu' isn't supported, only 'silu'"),
        (change_config(head_dim=16), "head_dim 16 isn't supported: it must be hidden_size / num_attention_heads"),
        (change_config(quantization_config={"bits": 4}), "quantization_config: quantized weights aren't supported"),
        (change_config(num_hidden_layers=None), "num_hidden_layers must be a whole number, not None"),
        (
            change_config(model_type="qwen2", architectures=["Qwen2ForCausalLM"]),
            "describes Qwen2ForCausalLM; only LlamaForCausalLM can be imported",
        ),
        (change_config(num_key_value_heads=3), "kv_heads 3 doesn't divide heads 4; 1, 2, 4 would"),
        (change_config(num_key_value_heads=4), "k_proj.weight has shape [16, 32], but by config.json it would be"),
        (change_config(num_hidden_layers=3), "has no tensor model.layers.2.input_layernorm.weight"),
        (change_config(num_hidden_layers=1), "has a tensor model.layers.1."),
        (change_tensors(lambda t: t.pop("lm_head.weight")), "has no tensor lm_head.weight"),
        (
            change_tensors(lambda t: t.update({"lm_head.weight": t["lm_head.weight"].to(torch.int32)})),
            "tensor lm_head.weight is of I32; F32, F16, BF16, F64 can be imported",
        ),
        (
            lambda folder: (folder / "config.json").unlink(),
            "has no config.json, so it is not a model in Hugging Face's format",
        ),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json can't be read"),
        (lambda folder: (folder / "config.json").write_text("[]"), "config.json can't be read: it holds no JSON"),
        (_only_a_pickle, "holds neither model.safetensors nor model.safetensors.index.json"),
        (_cut, "model.safetensors can't be read"),
        (_index(**{"lm_head.weight": "gone.safetensors"}), "names gone.safetensors, which isn't there"),
        (_index(**{"lm_head.weight": "../model.safetensors"}), "must name the file of each tensor, in the same folder"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_what_is_no_llama_of_ours_is_refused(tmp_path: Path, change: Callable[[Path], Any], sentence: str) -> None:
    hugging_face(tmp_path / "hf")
    change(tmp_path / "hf")
    with pytest.raises(ConfigError) as refused:
        import_(tmp_path / "hf", tmp_path / "imported")
    assert sentence in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1
    assert not (tmp_path / "imported").exists()


def test_a_model_that_is_no_llama_is_not_written_for_hugging_face(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "checkpoints", ModelConfig(name="gpt", options={"layers": 1, "width": 8, "heads": 1}))
    with pytest.raises(
        ConfigError, match=r"is of model gpt, and only those of model llama can .*; use --format trainm"
    ):
        export(path, tmp_path / "out", form=exporting.HUGGING_FACE)
    assert not (tmp_path / "out").exists()


def _without_model(manifest: dict[str, Any]) -> None:
    del manifest["model"]


def _without_tensor(manifest: dict[str, Any]) -> None:
    del manifest["tensors"]["model.norm.weight"]


def _without_chunk(manifest: dict[str, Any]) -> None:
    manifest["tensors"]["model.norm.weight"]["chunks"] = []


def _wider(manifest: dict[str, Any]) -> None:
    manifest["model"]["options"]["hidden"] = 64


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (_without_model, "doesn't say what model it is of"),
        (_without_tensor, "it has no tensor model.norm.weight"),
        (_without_chunk, "tensor model.norm.weight has parts that no file holds"),
        (_wider, r"tensor model.blocks.0.mlp.gate.weight has shape \[48, 32\], not \[64, 32\]"),
    ],
)
def test_a_checkpoint_that_does_not_fit_together_is_not_exported(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], sentence: str
) -> None:
    path = checkpoint(tmp_path / "checkpoints")
    manifest = json.loads((path / "manifest.json").read_text())
    change(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ConfigError, match=sentence):
        export(path, tmp_path / "out", 5 * GB)
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_that_is_incomplete_damaged_or_none_is_not_exported(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "checkpoints")
    shard = path / "rank-00000.safetensors"
    whole = shard.read_bytes()

    def refusal(source: Path) -> str:
        with pytest.raises(ConfigError) as refused:
            export(source, tmp_path / "out", 5 * GB)
        assert not (tmp_path / "out").exists()
        return str(refused.value)

    shard.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert "its content doesn't match its checksum" in refusal(path)
    shard.write_bytes(whole[:-1])
    assert f"has {len(whole) - 1} bytes, {len(whole)} were written" in refusal(path)
    shard.unlink()
    assert "rank-00000.safetensors is missing" in refusal(path)
    (path / "manifest.json").unlink()
    assert "has no manifest.json: it was never completed" in refusal(path)
    assert "is neither a checkpoint" in refusal(path.parent)
    assert "there is no checkpoint" in refusal(tmp_path / "gone")


def test_a_folder_with_something_in_it_is_left_as_it_is(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "checkpoints")
    hugging_face(tmp_path / "hf")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("mine")
    for write in (lambda: export(path, tmp_path / "out", 5 * GB), lambda: import_(tmp_path / "hf", tmp_path / "out")):
        with pytest.raises(ConfigError, match="out is not empty; an empty or a new folder is expected"):
            write()
    assert files(tmp_path / "out") == {"thesis.tex": b"mine"}
    with pytest.raises(ConfigError, match=r"thesis\.tex is not a folder"):
        export(path, tmp_path / "out" / "thesis.tex", 5 * GB)
    with pytest.raises(ConfigError, match="there is no folder"):
        export(path, tmp_path / "no" / "where", 5 * GB)


def test_a_write_that_fails_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = checkpoint(tmp_path / "checkpoints")
    read = exporting.load_tensors

    def fails(storage: Any, directory: str, manifest: Any, targets: dict[str, torch.Tensor]) -> None:
        if "model.head.weight" in targets:
            raise OSError("the disk is gone")
        read(storage, directory, manifest, targets)

    monkeypatch.setattr(exporting, "load_tensors", fails)
    (tmp_path / "empty").mkdir()
    for out in ("new", "empty"):
        with pytest.raises(OSError, match="the disk is gone"):
            export(path, tmp_path / out, 50_000)
    assert not (tmp_path / "new").exists()
    assert not os.listdir(tmp_path / "empty")


SMALL = {"layers": 4, "width": 32, "heads": 4, "kv_heads": 2, "context": 32}


@pytest.mark.processes
def test_an_export_is_the_same_whatever_the_layout_of_the_checkpoint(ranks: Ranks, tmp_path: Path, text: Path) -> None:
    """Jobs of several layouts, each of which saves the weights of one checkpoint again before it trains on them."""
    start = checkpoint(tmp_path / "start", ModelConfig(name="llama", options=SMALL))
    export(start, tmp_path / "expected", 5 * GB)
    import_(tmp_path / "expected", tmp_path / "imported")
    for parallelism, world in (({"pp": 2}, 2), ({"tp": 2, "dpShard": 2}, 4)):
        folder = tmp_path / "-".join(parallelism)
        still = {"lr": 1e-30, "weightDecay": 0.0}
        training = {"steps": 1, "checkpoint": {"every": 1, "keep": 1}, "optimizer": still}
        model = {"name": "llama", "options": SMALL}
        job = Job(ranks, folder / "run", text, model=model, parallelism=parallelism, **training)
        done = job.round(1, world, env={environment.RESUME: str(tmp_path / "imported" / "step-0.r1")})
        assert done.codes == [0] * world, done.output
        manifest = checkpoint_manifest.read_manifest(PosixStorage(folder / "run" / "checkpoints"), "step-1.r1")
        assert len(manifest.tensors["model.blocks.0.mlp.up.weight"].chunks) == (1 if "pp" in parallelism else world)
        export(folder / "run" / "checkpoints", folder / "out", 5 * GB)
        assert files(folder / "out") == files(tmp_path / "expected"), parallelism


@pytest.mark.processes
def test_a_job_that_starts_from_an_imported_model_knows_what_that_knew(
    ranks: Ranks, tmp_path: Path, text: Path
) -> None:
    model = {"name": "llama", "options": SMALL}
    first = Job(ranks, tmp_path / "first", text, model=model, steps=40, checkpoint={"every": 40, "keep": 1})
    assert first.round(1).codes == [0, 0]
    export(tmp_path / "first" / "checkpoints", tmp_path / "out", 5 * GB)
    import_(tmp_path / "out", tmp_path / "imported")
    resume = {environment.RESUME: str(tmp_path / "imported" / "step-0.r1")}
    second = Job(ranks, tmp_path / "second", text, model=model, parallelism={"tp": 2}, steps=4)
    done = second.round(1, env=resume)
    assert done.codes == [0, 0], done.output
    assert second.losses[1] < first.losses[1] - 1
    assert abs(second.losses[1] - first.losses[40]) < 0.5


@pytest.mark.processes
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"options": {**SMALL, "heads": 2}},
            "model.options.heads: is 2, but checkpoint {path} was made with 4; 4",
        ),
        ({"options": {**SMALL, "width": 64}}, "model.options.width: is 64, but checkpoint {path} was made with 32; 32"),
        ({"name": "gpt", "options": {}}, "model.name: is gpt, but checkpoint {path} was made with llama; llama would"),
    ],
)
def test_ranks_refuse_a_checkpoint_of_another_model_before_they_take_the_storage(
    ranks: Ranks, tmp_path: Path, text: Path, changes: dict[str, Any], sentence: str
) -> None:
    path = checkpoint(tmp_path / "start", ModelConfig(name="llama", options=SMALL))
    job = Job(ranks, tmp_path / "run", text, model={"name": "llama", **changes})
    done = job.round(1, env={environment.RESUME: str(path)})
    assert done.refused, done.codes
    assert sentence.format(path=path) in done.output
    assert not (tmp_path / "run" / "checkpoints" / "lineage").exists()
