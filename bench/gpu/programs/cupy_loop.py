"""Products of matrices and a reduction in CuPy. Prints "steps N"."""

import cupy

a = cupy.random.standard_normal((4096, 4096), dtype=cupy.float32)
b = cupy.random.standard_normal((4096, 4096), dtype=cupy.float32)
steps = 0
while True:
    for _ in range(20):
        a = cupy.tanh(a @ b * 0.01)
        steps += 1
    float(cupy.abs(a).sum())
    print("steps", steps, flush=True)
