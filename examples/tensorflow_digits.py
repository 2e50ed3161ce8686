"""MultiWorkerMirroredStrategy in a loop of one's own, on scikit-learn's digits.

The script knows nothing of Trainmaster. It needs a folder that all ranks see, from which it resumes by itself.
"""

import argparse
import os
import time
from pathlib import Path

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser()
parser.add_argument("--folder", type=Path, required=True)
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--pause", type=float, default=0.0, help="seconds that each step takes longer")
options = parser.parse_args()

strategy = tf.distribute.MultiWorkerMirroredStrategy()
cluster = strategy.cluster_resolver
rank, ranks = cluster.task_id or 0, len(cluster.cluster_spec().as_dict().get("worker", [0]))
print("rank", rank, "is process", os.getpid(), flush=True)

digits = load_digits()
images, labels = (digits.data / 16).astype("float32"), digits.target.astype("int64")

tf.keras.utils.set_random_seed(0)
with strategy.scope():
    layers = tf.keras.layers
    model = tf.keras.Sequential([layers.Input((64,)), layers.Dense(32, activation="relu"), layers.Dense(10)])
    optimizer = tf.keras.optimizers.Adam(1e-2)
    optimizer.build(model.trainable_variables)

checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
# All workers save, and only the chief's files are read: so TensorFlow's guide has it.
own = options.folder / ("chief" if rank == 0 else f"worker-{rank}")
manager = tf.train.CheckpointManager(checkpoint, str(own), max_to_keep=2)
checkpoint.restore(tf.train.latest_checkpoint(str(options.folder / "chief")))
first = int(optimizer.iterations.numpy())
if first:
    print("resumed at step", first, flush=True)


@tf.function
def train(x, y):
    def replica(x, y):
        with tf.GradientTape() as tape:
            losses = tf.keras.losses.sparse_categorical_crossentropy(y, model(x, training=True), from_logits=True)
            loss = tf.reduce_sum(losses) / options.batch
        gradients = tape.gradient(loss, model.trainable_variables)
        gradients = tf.distribute.get_replica_context().all_reduce("sum", gradients)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    return strategy.reduce("sum", strategy.run(replica, args=(x, y)), axis=None)


for step in range(first + 1, options.steps + 1):
    batch = np.random.RandomState(step).permutation(len(images))[: options.batch][rank::ranks]
    loss = float(train(tf.constant(images[batch]), tf.constant(labels[batch])))
    if step % 10 == 0:
        manager.save(checkpoint_number=step)
    time.sleep(options.pause)
if first < options.steps:
    print("final loss", loss.hex(), flush=True)
