"""Data-parallel training with Horovod and Keras 3, on scikit-learn's digits: each rank has a part of each batch.

The script knows nothing of Trainmaster. Rank 0 alone saves and restores, and gives the others what it has restored.
"""

import argparse
import os
import time
from pathlib import Path

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser()
parser.add_argument("--folder", type=Path, required=True)
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--pause", type=float, default=0.0, help="seconds that each step takes longer")
options = parser.parse_args()

hvd.init()
print("rank", hvd.rank(), "is process", os.getpid(), flush=True)
tf.keras.utils.set_random_seed(0)
layers = tf.keras.layers
model = tf.keras.Sequential([layers.Input((64,)), layers.Dense(32, activation="relu"), layers.Dense(10)])
optimizer = tf.keras.optimizers.Adam(1e-2)
optimizer.build(model.trainable_variables)

checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
manager = tf.train.CheckpointManager(checkpoint, str(options.folder), max_to_keep=2)
if hvd.rank() == 0:
    checkpoint.restore(manager.latest_checkpoint)
# Horovod asks for TensorFlow's variables. In Keras 3 each is the `value` of a variable of Keras.
hvd.broadcast_variables([variable.value for variable in model.variables + optimizer.variables], root_rank=0)
first = int(optimizer.iterations.numpy())
if first:
    print("resumed at step", first, flush=True)


@tf.function
def train(x, y):
    with tf.GradientTape() as tape:
        losses = tf.keras.losses.sparse_categorical_crossentropy(y, model(x, training=True), from_logits=True)
        loss = tf.reduce_mean(losses)
    tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
    optimizer.apply(gradients, model.trainable_variables)
    return hvd.allreduce(loss)


digits = load_digits()
images, labels = (digits.data / 16).astype("float32"), digits.target.astype("int64")
for step in range(first + 1, options.steps + 1):
    batch = np.random.RandomState(step).permutation(len(images))[: options.batch][hvd.rank() :: hvd.size()]
    loss = float(train(tf.constant(images[batch]), tf.constant(labels[batch])))
    if step % 10 == 0 and hvd.rank() == 0:
        manager.save(checkpoint_number=step)
    time.sleep(options.pause)
if first < options.steps:
    print("final loss", loss.hex(), flush=True)
