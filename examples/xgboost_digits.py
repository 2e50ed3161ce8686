"""Boosted trees over several ranks with XGBoost's collective, on scikit-learn's digits: each rank has a part of the
rows."""

import argparse
import os
import time
from pathlib import Path

import xgboost
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser()
parser.add_argument("--folder", type=Path, required=True)
parser.add_argument("--rounds", type=int, default=50)
parser.add_argument("--pause", type=float, default=0.0, help="seconds that each round takes longer")
options = parser.parse_args()
saved = options.folder / "model.ubj"


class Save(xgboost.callback.TrainingCallback):
    def after_iteration(self, model, epoch, evals_log):
        if xgboost.collective.get_rank() == 0 and model.num_boosted_rounds() % 10 == 0:
            options.folder.mkdir(parents=True, exist_ok=True)
            model.save_model(options.folder / "new.ubj")
            (options.folder / "new.ubj").replace(saved)
        time.sleep(options.pause)
        return False


with xgboost.collective.CommunicatorContext():
    rank, ranks = xgboost.collective.get_rank(), xgboost.collective.get_world_size()
    print("rank", rank, "is process", os.getpid(), flush=True)
    digits = load_digits()
    rows = xgboost.DMatrix(digits.data[rank::ranks], digits.target[rank::ranks], nthread=1)
    before = xgboost.Booster(model_file=saved) if saved.exists() else None
    done = before.num_boosted_rounds() if before is not None else 0
    if done:
        print("resumed at step", done, flush=True)
    settings = {"objective": "multi:softprob", "num_class": 10, "max_depth": 3, "nthread": 1}
    model = xgboost.train(settings, rows, options.rounds - done, xgb_model=before, callbacks=[Save()])
    print("final loss", model.eval(rows).split(":")[-1], flush=True)
