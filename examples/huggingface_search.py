"""A search by Trainer and Optuna, on scikit-learn's digits. Its study is in a file, so it goes on after a restart."""

import argparse
import os
from pathlib import Path

import optuna
import torch
from optuna.trial import TrialState
from sklearn.datasets import load_digits
from transformers import Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--folder", type=Path, required=True)
parser.add_argument("--trials", type=int, default=10, help="completed trials of the whole search")
parser.add_argument("--steps", type=int, default=100, help="of each trial")
options = parser.parse_args()


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))

    def forward(self, images, labels):
        logits = self.layers(images)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


digits = load_digits()
images = torch.tensor(digits.data / 16, dtype=torch.float32)
samples = [{"images": image, "labels": int(label)} for image, label in zip(images, digits.target, strict=True)]
arguments = TrainingArguments(
    output_dir=str(options.folder),
    max_steps=options.steps,
    eval_strategy="steps",
    eval_steps=options.steps // 2,
    save_steps=options.steps // 2,
    report_to=[],
)
trainer = Trainer(model_init=Model, args=arguments, train_dataset=samples[:1500], eval_dataset=samples[1500:])
print("rank", arguments.process_index, "is process", os.getpid(), flush=True)

study_in_file = {
    "study_name": "digits",
    "storage": f"sqlite:///{options.folder}/study.db",
    "load_if_exists": True,
    # Rank 0 alone would leave a trial that is pruned, and the other ranks would wait for it in the middle of the trial.
    "pruner": optuna.pruners.NopPruner(),
}
options.folder.mkdir(parents=True, exist_ok=True)
with arguments.main_process_first(local=False):
    study = optuna.create_study(**study_in_file)
    trials = study.trials
    left = options.trials - sum(trial.state == TrialState.COMPLETE for trial in trials)
if arguments.process_index == 0 and trials and trials[-1].state in (TrialState.RUNNING, TrialState.FAIL):
    cut = trials[-1]  # by a failure
    if cut.state == TrialState.RUNNING:
        study.tell(cut.number, state=TrialState.FAIL)
    if sum(trial.params == cut.params for trial in trials) < 3:  # its values may have caused the failure
        study.enqueue_trial(cut.params)

best = trainer.hyperparameter_search(
    hp_space=lambda trial: {"learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-1, log=True)},
    n_trials=left,  # of this process, not of the study
    backend="optuna",
    **study_in_file,
)
if best is not None:  # rank 0
    print("best trial", best.run_id, "with", best.hyperparameters, "and loss", best.objective, flush=True)
