#!/usr/bin/env python3
"""A training loop in JAX whose checkpoints and evaluations are idle phases of the training's device.

    python3 jax_loop.py --iterations 60
    FREERIDE_DEVICE=GPU-… python3 jax_loop.py      # as nvidia-smi -L calls it

JAX hands work to its device and goes on, so each phase begins behind block_until_ready(): then the device has nothing to do.
FREERIDE_DEVICE names a GPU; without it the phases are those of the CPU device cpu-0. All is deterministic for a given --seed.
"""

import argparse
import contextlib
import json
import pathlib
import pickle
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy

try:
    import freeride
except ImportError:  # then it is the same training without side tasks
    freeride = None


def phase(name, options):
    return freeride.idle(name) if freeride and options.hook == "on" else contextlib.nullcontext()


def first_weights(key, widths):
    keys = jax.random.split(key, len(widths) - 1)
    return [
        {"w": jax.random.normal(one, (into, out)) / into**0.5, "b": jnp.zeros(out)}
        for one, into, out in zip(keys, widths, widths[1:])
    ]


def predict(weights, x):
    for layer in weights[:-1]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return (x @ weights[-1]["w"] + weights[-1]["b"])[:, 0]


def loss_of(weights, x, y):
    return jnp.mean((predict(weights, x) - y) ** 2)


@jax.jit
def step(weights, x, y, rate):
    loss, gradient = jax.value_and_grad(loss_of)(weights, x, y)
    return jax.tree_util.tree_map(lambda w, g: w - rate * g, weights, gradient), loss


def save(path, weights, seconds):
    """Writes host memory, for at least so long, as to a slow file system."""
    began = time.monotonic()
    with open(path, "wb") as file:
        pickle.dump(weights, file)
    time.sleep(max(0.0, seconds - (time.monotonic() - began)))


def evaluate(weights, x, y):
    """On the host, in numpy."""
    for layer in weights[:-1]:
        x = numpy.tanh(x @ layer["w"] + layer["b"])
    return float(numpy.mean(((x @ weights[-1]["w"] + weights[-1]["b"])[:, 0] - y) ** 2))


def train(options):
    key = jax.random.PRNGKey(options.seed)
    weights = first_weights(key, [8, options.width, options.width, 1])
    x = jax.random.normal(jax.random.fold_in(key, 1), (512, 8))
    y = jnp.sin(x.sum(1))
    test_x, test_y = numpy.asarray(x[:64]), numpy.asarray(y[:64])
    with tempfile.TemporaryDirectory() as folder:
        for iteration in range(options.iterations):
            weights, loss = step(weights, x, y, 0.05)
            if (iteration + 1) % options.save_every:
                continue
            on_host = jax.device_get(jax.block_until_ready(weights))
            with phase("save", options):
                save(pathlib.Path(folder, "weights.pickle"), on_host, options.save_seconds)
            with phase("eval", options):
                tested = evaluate(on_host, test_x, test_y)
            print(json.dumps({"iteration": iteration, "loss": float(loss), "tested": tested}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--save-every", type=int, default=10, help="iterations")
    parser.add_argument("--save-seconds", type=float, default=0.2, help="a checkpoint takes at least so long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hook", choices=["on", "off"], default="on", help="off: no phase is marked")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
