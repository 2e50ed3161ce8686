"""Data parallel with JAX, on scikit-learn's digits: a global batch over the devices of all ranks.

`initialize()` has no arguments. JAX's steps can't be seen from outside, so the script tells them.
"""

import argparse
import os
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

import trainmaster as tm

parser = argparse.ArgumentParser()
parser.add_argument("--folder", type=Path, required=True)
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--pause", type=float, default=0.0, help="seconds that each step takes longer")
options = parser.parse_args()

jax.distributed.initialize()
rank, ranks = jax.process_index(), jax.process_count()
print("rank", rank, "is process", os.getpid(), flush=True)
run = tm.init()

digits = load_digits()
images, labels = (digits.data / 16).astype("float32"), digits.target.astype("int32")
mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
by_rank = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())


def loss_of(weights, x, y):
    logits = jax.nn.relu(x @ weights["inner"]) @ weights["outer"]
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1))


@jax.jit
def train(weights, x, y):
    loss, gradients = jax.value_and_grad(loss_of)(weights, x, y)
    return loss, jax.tree.map(lambda weight, gradient: weight - 0.1 * gradient, weights, gradients)


chance = np.random.RandomState(0)
weights = {"inner": chance.randn(64, 32).astype("float32") / 8, "outer": chance.randn(32, 10).astype("float32") / 8}
first, saved = 0, options.folder / "weights.npz"
if saved.exists():
    with np.load(saved) as file:
        first, weights = int(file["step"]), {name: file[name] for name in weights}
    print("resumed at step", first, flush=True)
weights = jax.device_put(weights, everywhere)

for step in range(first + 1, options.steps + 1):
    batch = np.random.RandomState(step).permutation(len(images))[: options.batch].reshape(ranks, -1)[rank]
    x, y = (jax.make_array_from_process_local_data(by_rank, part[batch]) for part in (images, labels))
    loss, weights = train(weights, x, y)
    run.report(step=step, loss=float(loss))
    if step % 10 == 0 and rank == 0:
        options.folder.mkdir(parents=True, exist_ok=True)
        np.savez(options.folder / "new.npz", step=step, **jax.tree.map(np.asarray, weights))
        (options.folder / "new.npz").replace(saved)
    time.sleep(options.pause)
if first < options.steps:
    print("final loss", float(loss).hex(), flush=True)
