"""`fit` under MultiWorkerMirroredStrategy, on scikit-learn's digits, with Keras's own backups.

Keras 3 can't `fit` under this strategy; tf-keras, which is Keras 2, can.
"""

import argparse
import os
import time
from pathlib import Path

import tensorflow as tf
import tf_keras as keras
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser()
parser.add_argument("--folder", type=Path, required=True)
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--pause", type=float, default=0.0, help="seconds that each step takes longer")
options = parser.parse_args()


class Pause(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(options.pause)


strategy = tf.distribute.MultiWorkerMirroredStrategy()
print("rank", strategy.cluster_resolver.task_id or 0, "is process", os.getpid(), flush=True)
digits = load_digits()
data = tf.data.Dataset.from_tensor_slices(((digits.data / 16).astype("float32"), digits.target)).batch(128)
sharding = tf.data.Options()
sharding.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
keras.utils.set_random_seed(0)
with strategy.scope():
    layers = keras.layers
    model = keras.Sequential([layers.Input((64,)), layers.Dense(32, activation="relu"), layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-2), loss)
# After each epoch: a backup in the middle of one does not say where the data was.
backups = keras.callbacks.BackupAndRestore(str(options.folder), delete_checkpoint=False)
history = model.fit(data.with_options(sharding), epochs=options.epochs, callbacks=[backups, Pause()], verbose=0)
if history.history:
    print("final loss", float(history.history["loss"][-1]).hex(), flush=True)
