"""A plain script of Hugging Face's Trainer. It resumes from its newest checkpoint, and knows nothing of Trainmaster."""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

PACE_S = 0.025
VOCABULARY = 64


class Sequences(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 2**14

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(VOCABULARY, (64,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


class Pace(TrainerCallback):  # type: ignore[misc]
    def on_step_end(self, *_: Any, **__: Any) -> None:
        time.sleep(PACE_S)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--every", type=int, required=True)
    given = parser.parse_args()

    torch.manual_seed(0)
    sizes = {"n_layer": 2, "n_head": 4, "n_embd": 128, "n_positions": 64}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=0, **sizes))
    arguments = TrainingArguments(
        given.folder,
        max_steps=given.steps,
        save_steps=given.every,
        logging_steps=given.every,
        per_device_train_batch_size=8,
        bf16=torch.cuda.is_available(),
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=Sequences(), callbacks=[Pace()])
    last = get_last_checkpoint(given.folder)
    print(f"on {trainer.args.device}, resumes from {last}", flush=True)
    trainer.train(resume_from_checkpoint=last)


if __name__ == "__main__":
    main()
