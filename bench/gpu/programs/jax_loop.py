"""A small network trained in JAX, compiled. Prints "steps N"."""

import jax
import jax.numpy as jnp

keys = jax.random.split(jax.random.key(0), 4)
weights = [jax.random.normal(key, (2048, 2048)) * 0.02 for key in keys]
batch = jax.random.normal(keys[0], (1024, 2048))


def loss(weights, batch):
    value = batch
    for one in weights:
        value = jnp.tanh(value @ one)
    return (value**2).mean()


@jax.jit
def step(weights, batch):
    return [one - 0.01 * slope for one, slope in zip(weights, jax.grad(loss)(weights, batch))]


steps = 0
while True:
    for _ in range(20):
        weights = step(weights, batch)
        steps += 1
    weights[0].block_until_ready()
    print("steps", steps, flush=True)
