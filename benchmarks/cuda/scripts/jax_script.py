"""A script of JAX on the device of its rank. It resumes from its own checkpoint, and reports its steps."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import trainmaster as tm

PACE_S = 0.025


def loss_of(weights: dict[str, Any], x: Any) -> Any:
    y = jax.nn.gelu(x @ weights["inner"]) @ weights["outer"]
    return jnp.mean((y - jnp.roll(x, 1, axis=1)) ** 2)


@jax.jit
def train(weights: dict[str, Any], x: Any) -> tuple[Any, dict[str, Any]]:
    loss, gradients = jax.value_and_grad(loss_of)(weights, x)
    return loss, jax.tree.map(lambda weight, gradient: weight - 0.1 * gradient, weights, gradients)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--every", type=int, required=True)
    given = parser.parse_args()

    jax.distributed.initialize()
    run = tm.init()
    given.folder.mkdir(parents=True, exist_ok=True)
    chance = np.random.RandomState(0)
    weights = {
        "inner": chance.randn(64, 512).astype("float32") / 8,
        "outer": chance.randn(512, 64).astype("float32") / 22,
    }
    checkpoint, first = given.folder / "checkpoint.npz", 0
    if checkpoint.exists():
        with np.load(checkpoint) as file:
            first, weights = int(file["step"]), {name: file[name] for name in weights}
        print(f"resumes behind step {first}", flush=True)
    weights = jax.device_put(weights)
    for step in range(first + 1, given.steps + 1):
        loss, weights = train(weights, np.random.RandomState(step).randn(32, 64).astype("float32"))
        run.report(step=step, loss=float(loss))
        if step % given.every == 0:
            np.savez(given.folder / "new.npz", step=step, **jax.tree.map(np.asarray, weights))
            (given.folder / "new.npz").replace(checkpoint)
        time.sleep(PACE_S)
    print(f"step {given.steps}: loss {float(loss):.6f} on {jax.devices()[0].device_kind}", flush=True)


if __name__ == "__main__":
    main()
