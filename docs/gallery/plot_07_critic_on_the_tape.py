"""
Train a critic in NumPy
=======================

NumPy has no gradients. ``pnce.value_and_grad`` differentiates plain NumPy code, so a critic can be trained on any bound
on mutual information. This critic learns the log ratio of two correlated Gaussian variables, which is known.
"""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import minimize

import portable_nce as pnce

RHO, N, HIDDEN = 0.9, 400, 16
TRUTH = -0.5 * np.log(1 - RHO**2)
rng = np.random.default_rng(0)


def pairs(n: int) -> tuple[Any, Any]:
    """Draw pairs of standard normal numbers with correlation RHO."""
    x, noise = rng.normal(size=(2, n))
    return x, RHO * x + np.sqrt(1 - RHO**2) * noise


# %%
# The critic
# ----------
#
# A network with two hidden layers scores every x against every y. :doc:`../tape` lists the NumPy functions that can be
# differentiated. Any other function raises an error.

SHAPES = ((2, HIDDEN), (HIDDEN,), (HIDDEN, HIDDEN), (HIDDEN,), (HIDDEN, 1))
ENDS = np.cumsum([np.prod(shape) for shape in SHAPES])[:-1]
start = np.concatenate([rng.normal(size=shape).ravel() / np.sqrt(shape[0]) for shape in SHAPES])


def critic(vector: Any, x: Any, y: Any) -> Any:
    """Score every x against every y."""
    a, b, c, d, e = (part.reshape(shape) for part, shape in zip(np.split(vector, ENDS), SHAPES, strict=True))
    hidden = np.tanh(x[:, None, None] * a[0] + y[None, :, None] * a[1] + b)
    return (np.tanh(hidden @ c + d) @ e)[:, :, 0]


def objective(vector: Any, x: Any, y: Any) -> Any:
    """Return the negative bound plus weight decay."""
    return -pnce.bounds.info_nce_anchor(critic(vector, x, y)) + 2e-3 * np.sum(vector**2)


# %%
# Training
# --------
#
# The best critic of ``info_nce_anchor`` is the log ratio log p(y | x) / p(y). For InfoNCE it may also contain any
# function of x.

x, y = pairs(N)
value_and_gradient = pnce.value_and_grad(objective)
result = minimize(value_and_gradient, start, (x, y), "L-BFGS-B", jac=True, options={"maxiter": 80})

# %%
# The critic and the true log ratio
# ---------------------------------
#
# Colours show the critic, lines the true log ratio at the same levels, dots the training pairs. The critic is close to
# the truth where there are samples.

axis = np.linspace(-2.5, 2.5, 80)
learned = critic(result.x, axis, axis)
exact = TRUTH + (2 * RHO * axis[:, None] * axis - RHO**2 * (axis[:, None] ** 2 + axis**2)) / (2 * (1 - RHO**2))
levels = np.arange(-4.0, 2.5)
figure, axes = plt.subplots(figsize=(5, 3.5), layout="constrained")
filled = axes.contourf(axis, axis, learned.T, levels=levels, cmap="viridis", extend="both")
axes.contour(axis, axis, exact.T, levels=levels, colors="white", linestyles="solid", linewidths=0.8)
axes.plot(x, y, ".", markersize=2, color="black", alpha=0.5)
axes.set(xlabel="x", ylabel="y", xlim=(-2.5, 2.5), ylim=(-2.5, 2.5), aspect="equal")
figure.colorbar(filled, label="nats")
plt.show()

estimate = float(pnce.bounds.info_nce(critic(result.x, *pairs(N))))
print(f"mutual information {TRUTH:.3f} nats, InfoNCE bound on new pairs {estimate:.3f} nats")

assert 0.6 < estimate < TRUTH + 0.1
