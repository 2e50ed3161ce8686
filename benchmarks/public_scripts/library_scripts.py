"""Scripts of Hugging Face's and Lightning's repositories."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from benchmarks.public_scripts import data
from benchmarks.public_scripts.scripts import Change, Lines, PublicScript, Weights

_TRANSFORMERS = ("huggingface/transformers", "3a275d3581c0ecf962f7412aa764c2047331fd6b")
_ACCELERATE = ("huggingface/accelerate", "16cb6eb80dd9aa8b4df1a63ef57863e455d53b83")
_LIGHTNING = ("Lightning-AI/pytorch-lightning", "7f0c3436cd3f6ad3753125672024fc415cbcb414")
_TRAINER = (
    *("--do_train", "--use_cpu", "--max_steps", "40", "--save_steps", "10", "--logging_steps", "1"),
    *("--output_dir", "out", "--report_to", "none", "--seed", "1", "--per_device_train_batch_size", "4"),
)
_FROM_THE_START = "It saves nothing before its end, so a killed run starts again from the beginning."
_LIGHTNING_ON_CPU = {"LT_CLI_USED": "1", "LT_ACCELERATOR": "cpu", "LT_STRATEGY": "ddp", "LT_DEVICES": "2"}
"""What `fabric run` sets."""


def _gpt_config(folder: Path, path: str) -> None:
    from transformers import GPT2Config

    GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=64).save_pretrained(folder / path)


_bert = data.all_of(partial(data.language_model, path="bert-base-cased", model=True), partial(data.glue))

SCRIPTS = (
    PublicScript(
        "transformers run_clm",
        *_TRANSFORMERS,
        folder="examples/pytorch/language-modeling",
        words=(
            *("run_clm.py", "--model_type", "gpt2", "--tokenizer_name", "tokens", "--train_file", "train.txt"),
            *("--config_overrides", "n_embd=32,n_layer=2,n_head=2,n_positions=64", "--block_size", "32", *_TRAINER),
        ),
        end=Weights("out/model.safetensors"),
        prepare=data.all_of(
            partial(data.language_model, path="tokens", model=False), partial(data.text, path="train.txt", lines=2000)
        ),
        restart=("--resume_from_checkpoint", "out/checkpoint-10"),
        kill_step=15,
        pace_s=1.2,
    ),
    PublicScript(
        "transformers run_glue",
        *_TRANSFORMERS,
        folder="examples/pytorch/text-classification",
        words=(
            *("run_glue.py", "--model_name_or_path", "model", "--train_file", "train.json"),
            *("--validation_file", "dev.json", "--max_seq_length", "32", *_TRAINER),
        ),
        end=Weights("out/model.safetensors"),
        prepare=data.all_of(
            partial(data.language_model, path="model", model=True),
            partial(data.pairs, path="train.json", count=400, numbered=False),
            partial(data.pairs, path="dev.json", count=32, numbered=False),
            partial(data.metric, name="accuracy"),
        ),
        restart=("--resume_from_checkpoint", "out/checkpoint-10"),
        kill_step=15,
        pace_s=1.2,
    ),
    PublicScript(
        "transformers run_clm_no_trainer",
        *_TRANSFORMERS,
        folder="examples/pytorch/language-modeling",
        words=(
            *("run_clm_no_trainer.py", "--config_name", "config", "--tokenizer_name", "tokens"),
            *("--train_file", "train.txt", "--validation_file", "dev.txt", "--block_size", "32", "--seed", "1"),
            *("--per_device_train_batch_size", "4", "--max_train_steps", "40", "--checkpointing_steps", "10"),
            *("--output_dir", "out"),
        ),
        end=Weights("out/model.safetensors"),
        changes=(
            Change("run_clm_no_trainer.py", "DistributedType.TPU", "DistributedType.XLA", "accelerate has renamed it"),
        ),
        prepare=data.all_of(
            partial(data.language_model, path="tokens", model=False),
            partial(_gpt_config, path="config"),
            partial(data.text, path="train.txt", lines=2000),
            partial(data.text, path="dev.txt", lines=100),
        ),
        restart=("--resume_from_checkpoint", "out/step_10"),
        kill_step=15,
        pace_s=1.2,
    ),
    PublicScript(
        "accelerate nlp_example",
        *_ACCELERATE,
        folder="examples",
        words=("nlp_example.py", "--cpu"),
        end=Lines(r"epoch \d+: \{.*\}", 3),
        prepare=_bert,
        kill_step=9,
        pace_s=2.0,
        why=_FROM_THE_START,
    ),
    PublicScript(
        "accelerate complete_nlp_example",
        *_ACCELERATE,
        folder="examples",
        words=("complete_nlp_example.py", "--cpu", "--checkpointing_steps", "epoch", "--output_dir", "out"),
        end=Weights("out/epoch_2/model.safetensors"),
        prepare=_bert,
        restart=("--resume_from_checkpoint", "out/epoch_0"),
        kill_step=9,
        pace_s=2.0,
    ),
    PublicScript(
        "accelerate cv_example",
        *_ACCELERATE,
        folder="examples",
        words=("cv_example.py", "--cpu", "--data_dir", "pets"),
        end=Lines(r"epoch \d+: [\d.]+", 3),
        changes=(Change("cv_example.py", "pretrained=True", "pretrained=False", "its weights come from a hub"),),
        prepare=partial(data.pets, path="pets", each=10),
        kill_step=2,
        why=_FROM_THE_START,
    ),
    PublicScript(
        "Lightning Fabric, image classifier",
        *_LIGHTNING,
        folder="examples",
        within="fabric/image_classifier",
        words=("train_fabric.py", "--epochs", "3", "--batch-size", "32", "--save-model", "--log-interval", "1"),
        end=Weights("mnist_cnn.pt"),
        prepare=partial(data.mnist, path="../Datasets", train=512, test=64),
        variables=_LIGHTNING_ON_CPU,
        kill_step=12,
        pace_s=1.2,
        why=_FROM_THE_START,
    ),
    *(
        PublicScript(
            f"Lightning CLI, {name}",
            *_LIGHTNING,
            folder="examples",
            within="pytorch/basics",
            words=(
                *(file, "--trainer.accelerator=cpu", "--trainer.devices=2", "--trainer.strategy=ddp"),
                *("--trainer.max_epochs=3", "--trainer.limit_train_batches=10", "--trainer.limit_val_batches=2"),
                *("--trainer.limit_test_batches=2", "--trainer.limit_predict_batches=2"),
                "--trainer.log_every_n_steps=1",
            ),
            end=Weights("lightning_logs/version_*/checkpoints/*.ckpt", "state_dict"),
            prepare=data.all_of(
                partial(data.mnist, path="Datasets", train=60000, test=64),
                partial(data.mnist, path="pytorch/basics/data", train=64, test=64),  # Lightning looks there, too
            ),
            kill_step=15,
            pace_s=1.2,
            why=_FROM_THE_START,
        )
        for name, file in (("autoencoder", "autoencoder.py"), ("image classifier", "backbone_image_classifier.py"))
    ),
)
