"""Small data in the formats that public scripts read, made here: nothing is downloaded.

All of it is the same each time. Each function writes below the folder that it is given.
"""

from __future__ import annotations

import json
import random
import struct
from functools import partial
from pathlib import Path

_TEXT = (
    "a of to in and is that it was for on are as with his they at be this have from or one had by word but not what "
    "all were we when your can said there use an each which she do how their if will up other about out many then them"
)
_WORDS = _TEXT.split()
_METRIC = '''"""{name}: the share of predictions that are right."""

import datasets
import evaluate


class Metric(evaluate.Metric):
    def _info(self):
        features = {{"predictions": datasets.Value("int64"), "references": datasets.Value("int64")}}
        return evaluate.MetricInfo(
            description="", citation="", inputs_description="", features=datasets.Features(features)
        )

    def _compute(self, predictions, references):
        right = sum(int(p == r) for p, r in zip(predictions, references))
        return {{"accuracy": right / max(len(references), 1)}}
'''


def sentences(count: int, seed: int = 0) -> list[str]:
    drawn = random.Random(seed)
    return [" ".join(drawn.choices(_WORDS, k=drawn.randint(6, 14))) for _ in range(count)]


def text(folder: Path, path: str, lines: int) -> None:
    """A text of so many lines."""
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(sentences(lines)) + "\n")


def mnist(folder: Path, path: str, train: int, test: int) -> None:
    """Random digits in MNIST's own files; torchvision doesn't download what is there."""
    import numpy

    raw = folder / path / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    drawn = numpy.random.default_rng(0)
    for part, count in (("train", train), ("t10k", test)):
        images = drawn.integers(0, 256, (count, 28, 28), dtype=numpy.uint8)
        labels = drawn.integers(0, 10, count, dtype=numpy.uint8)
        (raw / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 2051, count, 28, 28) + images.tobytes())
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, count) + labels.tobytes())


def image_folders(folder: Path, path: str, each: int) -> None:
    """Two classes of pictures, for training and for validation."""
    for part in ("train", "val"):
        for label in ("cats", "dogs"):
            pictures(folder, f"{path}/{part}/{label}", [f"{label}_{number}.jpg" for number in range(each)])


def pictures(folder: Path, path: str, names: list[str]) -> None:
    import numpy
    from PIL import Image

    (folder / path).mkdir(parents=True, exist_ok=True)
    drawn = numpy.random.default_rng(len(path))
    for name in names:
        Image.fromarray(drawn.integers(0, 256, (48, 48, 3), dtype=numpy.uint8)).save(folder / path / name)


def pets(folder: Path, path: str, each: int) -> None:
    """Pictures whose class is in their names, as the Oxford-IIIT pets have it."""
    pictures(folder, path, [f"{label}_{number}.jpg" for label in ("cat", "dog") for number in range(each)])


def pairs(folder: Path, path: str, count: int, *, numbered: bool) -> None:
    """Pairs of sentences with a label, a JSON object in each line."""
    drawn = random.Random(count)
    rows = []
    for number in range(count):
        first, second = sentences(2, seed=number)
        row = {"sentence1": first, "sentence2": second, "label": drawn.randint(0, 1)}
        rows.append(json.dumps({**row, "idx": number} if numbered else row))
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(rows) + "\n")


def glue(folder: Path, train: int = 192) -> None:
    """A folder by the name of the data set on the hub: `datasets` reads it instead."""
    for split, count in (("train", train), ("validation", 32), ("test", 32)):
        pairs(folder, f"nyu-mll/glue/mrpc/{split}.jsonl", count, numbered=True)
    (folder / "nyu-mll/glue/README.md").write_text(
        "---\nconfigs:\n- config_name: mrpc\n  data_files:\n"
        + "".join(f"  - split: {s}\n    path: mrpc/{s}.jsonl\n" for s in ("train", "validation", "test"))
        + "---\n"
    )
    metric(folder, "glue")


def metric(folder: Path, name: str) -> None:
    """A metric of this name, which `evaluate` finds in the working folder before it asks the hub."""
    (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / name / f"{name}.py").write_text(_METRIC.format(name=name))


def language_model(folder: Path, path: str, *, model: bool) -> None:
    """A tokenizer of words, and a BERT with random weights if `model`, as a folder that `from_pretrained` reads."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast, set_seed

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    tokens = {token: number for number, token in enumerate([*special, *sorted(set(_WORDS))])}
    tokenizer = Tokenizer(models.WordLevel(tokens, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", tokens["[CLS]"]), ("[SEP]", tokens["[SEP]"])],
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        eos_token="[SEP]",
        model_max_length=64,
    ).save_pretrained(folder / path)
    if model:
        set_seed(0)
        config = BertConfig(
            vocab_size=len(tokens),
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=64,
        )
        BertForSequenceClassification(config).save_pretrained(folder / path)


def all_of(*makers: partial[None]) -> partial[None]:
    """Return a function that calls all of these with a folder."""
    return partial(_call_all, makers)


def _call_all(makers: tuple[partial[None], ...], folder: Path) -> None:
    for maker in makers:
        maker(folder)
