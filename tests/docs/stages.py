"""What a session of a page begins with, and what is made smaller in it so that it takes seconds."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCHEDULE = "tests/simulation/a-rank-ends-with-exit-code-3.json"
"""The schedule of the exercise in CONTRIBUTING.md."""
TEXT = "the quick brown fox jumps over the lazy dog\n" * 500


@dataclass(frozen=True)
class Stage:
    """`first`: commands that run before those of the page. `smaller`: texts of the session's files and commands, each
    with what takes its place. `written`: files that commands of the page write, and in which these texts are replaced
    as soon as they exist. `before`: Python that runs before a block of Python."""

    prepare: Callable[[Path], None] = lambda folder: None
    first: tuple[str, ...] = ()
    smaller: Mapping[str, str] = field(default_factory=dict)
    written: tuple[str, ...] = ()
    before: str = ""


def _texts(folder: Path) -> None:
    texts = folder / "data" / "my-texts"
    texts.mkdir(parents=True)
    (texts / "a.txt").write_text(TEXT)


def _script(folder: Path) -> None:
    (folder / "train.py").write_text("import os\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n")


def _job(training: str, replicas: int) -> str:
    head = "apiVersion: trainmaster.dev/v1alpha1\nkind: DistributedTrainingJob\nmetadata: {name: job}\nspec:\n"
    return head + f"  workers: {{replicas: {replicas}}}\n  training:\n{textwrap.indent(training, '    ')}"


def _small_gpt(folder: Path) -> None:
    training = (
        "model: {name: gpt, options: {layers: 2, heads: 2, width: 32, context: 32}}\n"
        f"data: {{source: text, path: {folder}/data/my-texts}}\n"
        "steps: 48\n"
        "batch: {global: 24}\n"
    )
    _texts(folder)
    (folder / "job.yaml").write_text(_job(training, 3))


def _refused(folder: Path) -> None:
    """Four jobs that each ask for a layout which the model or the batch doesn't allow."""
    model = "model: {name: gpt, options: {layers: 4, heads: 4, width: 48, context: 48}}\n"
    deep = "model: {name: gpt, options: {layers: 8, heads: 4, width: 64, context: 64}}\n"
    data = f"data: {{source: text, path: {folder}/data/my-texts}}\nsteps: 10\nbatch: {{global: 16}}\n"
    _texts(folder)
    (folder / "heads.yaml").write_text(_job(model + data + "parallelism: {tp: 3}\n", 3))
    (folder / "ranks.yaml").write_text(_job(model + data + "parallelism: {dpShard: 3, tp: 2}\n", 2))
    (folder / "layers.yaml").write_text(_job(model + data + "parallelism: {pp: 8}\n", 8))
    (folder / "batch.yaml").write_text(_job(deep + data + "parallelism: {pp: 4, dpShard: 8}\n", 32))


def _llamas(folder: Path) -> None:
    """A small Llama in Hugging Face's format, and a checkpoint of it, under the names of the page."""
    import numpy
    from safetensors.numpy import save_file

    theirs = folder / "Llama-2-7b-hf"
    theirs.mkdir()
    (folder / "runs" / "my-llama").mkdir(parents=True)
    layers, width, hidden, vocabulary = 2, 16, 48, 300
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": width,
        "intermediate_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "vocab_size": vocabulary,
        "max_position_embeddings": 20,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }
    (theirs / "config.json").write_text(json.dumps(config))
    shapes: dict[str, tuple[int, ...]] = {f"self_attn.{name}_proj": (width, width) for name in "qkvo"}
    shapes |= {"mlp.gate_proj": (hidden, width), "mlp.up_proj": (hidden, width), "mlp.down_proj": (width, hidden)}
    shapes |= {"input_layernorm": (width,), "post_attention_layernorm": (width,)}
    tensors = {f"model.layers.{n}.{name}.weight": shape for n in range(layers) for name, shape in shapes.items()}
    tensors |= {"model.embed_tokens.weight": (vocabulary, width), "model.norm.weight": (width,)}
    tensors |= {"lm_head.weight": (vocabulary, width)}
    chance = numpy.random.default_rng(0)
    numbers = {name: chance.standard_normal(shape, dtype=numpy.float32) for name, shape in tensors.items()}
    save_file(numbers, theirs / "model.safetensors")
    options = f"layers: {layers}, heads: 4, width: {width}, vocabulary: {vocabulary}, rope_theta: 10000.0, context: 20"
    training = (
        f"model: {{name: llama, options: {{{options}}}}}\n"
        f"data: {{source: text, path: {folder}/data/my-texts}}\nsteps: 10\nbatch: {{global: 8}}\n"
    )
    _texts(folder)
    resume = f"  checkpoint: {{resume: {folder}/llama-2-7b/step-0.r1}}\n"
    (folder / "job.yaml").write_text(_job(training, 1) + resume)


def _corpus(folder: Path) -> None:
    """A tokenizer, and texts in a column of a table."""
    import pyarrow
    import pyarrow.parquet
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([TEXT], trainer)
    made.save(str(folder / "tokenizer.json"))
    (folder / "corpus").mkdir()
    pyarrow.parquet.write_table(pyarrow.table({"text": [TEXT] * 4}), folder / "corpus" / "part-0.parquet")


def _schedule(folder: Path) -> None:
    from simulation.schedule_runs.schedule import Schedule

    found = folder / "runs" / "soak"
    found.mkdir(parents=True)
    (found / "seed-4711.json").write_text(Schedule.of_seed(4711).to_json())


def _exercise(folder: Path) -> None:
    """The schedule of the exercise, at its path in the repository."""
    (folder / SCHEDULE).parent.mkdir(parents=True)
    (folder / SCHEDULE).write_bytes((ROOT / SCHEDULE).read_bytes())


_LOOP = """
import torch

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
loss = torch.tensor(1.0)
"""

_SMALLER = {
    "layers: 4, heads: 4, width: 128, context: 128": "layers: 2, heads: 2, width: 32, context: 32",
    "steps: 1000": "steps: 24",
    "global: 32": "global: 8",
}

_FIRST_JOB = {
    "{layers: 2, heads: 4, width: 96, context: 128}": "{layers: 1, heads: 2, width: 32, context: 32}",
    "steps: 200": "steps: 24",
    "every: 50": "every: 8",
    "step=100": "step=8",
}
"""Of the job that `trainmaster init` writes, and of a fault in it."""

STAGES: dict[str, Stage] = {
    "CONTRIBUTING.md:policy": Stage(_exercise),
    "README.md:own-job": Stage(smaller=_FIRST_JOB, written=("my-gpt.yaml",)),
    "README.md:script": Stage(_script),
    "docs/coming-from.md:loop": Stage(before=_LOOP),
    "docs/data.md:tokenizer": Stage(_corpus),
    "docs/efficiency.md:small": Stage(_small_gpt, smaller={"--ranks 8": "--ranks 2"}),
    "docs/faults.md:run": Stage(_small_gpt, smaller={"seconds=5": "seconds=1"}),
    "docs/first-job.md:first": Stage(smaller=_FIRST_JOB, written=("first.yaml",)),
    "docs/first-job.md:script": Stage(),
    "docs/huggingface.md:llama": Stage(
        _llamas,
        first=("trainmaster import Llama-2-7b-hf runs/my-llama/checkpoints",),
        smaller={"trainmaster export": "trainmaster export --file-gb 0.00002"},
    ),
    "docs/output.md:resume": Stage(_texts, smaller=_SMALLER),
    "docs/parallelism.md:refused": Stage(_refused),
    "docs/simulation.md:schedules": Stage(_schedule),
}
