"""
A critic of your own, differentiated by the tape
================================================

NumPy has no gradients. ``pnce.value_and_grad`` records what a function does with arrays and runs it backwards, so that
a critic of your own, written in plain NumPy, can be trained on any bound. Here it learns the log ratio of two
correlated numbers, whose true shape is known.
"""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import Normalize
from scipy.optimize import minimize

import portable_nce as pnce

RHO, N, HIDDEN = 0.9, 400, 16
TRUTH = -0.5 * np.log(1 - RHO**2)
rng = np.random.default_rng(0)


def pairs(n: int) -> tuple[Any, Any]:
    """Draw pairs of standard normal numbers with a correlation."""
    x, noise = rng.normal(size=(2, n))
    return x, RHO * x + np.sqrt(1 - RHO**2) * noise


# %%
# The critic
# ----------
#
# A network with one hidden layer of every x with every y. Nothing in it knows of gradients; broadcasting, ``tanh``,
# products and reshaping are recorded. What the tape knows is listed on :doc:`../tape`; anything else is refused by
# name.

SHAPES = ((2, HIDDEN), (HIDDEN,), (HIDDEN, HIDDEN), (HIDDEN,), (HIDDEN, 1))
ENDS = np.cumsum([np.prod(shape) for shape in SHAPES])[:-1]
start = np.concatenate([rng.normal(size=shape).ravel() / np.sqrt(shape[0]) for shape in SHAPES])


def critic(vector: Any, x: Any, y: Any) -> Any:
    """Score every x against every y."""
    a, b, c, d, e = (part.reshape(shape) for part, shape in zip(np.split(vector, ENDS), SHAPES, strict=True))
    hidden = np.tanh(x[:, None, None] * a[0] + y[None, :, None] * a[1] + b)
    return (np.tanh(hidden @ c + d) @ e)[:, :, 0]


def objective(vector: Any, x: Any, y: Any) -> Any:
    """What is minimised: minus the bound, and a little of the squared weights."""
    return -pnce.bounds.info_nce_anchor(critic(vector, x, y)) + 2e-3 * np.sum(vector**2)


# %%
# Training
# --------
#
# ``bounds.info_nce_anchor`` is InfoNCE with one more class, "none of them". Its best scores are the log ratios
# themselves, without the function of x that InfoNCE leaves open.

x, y = pairs(N)
path: list[Any] = []
value_and_gradient = pnce.value_and_grad(objective)
result = minimize(
    value_and_gradient, start, (x, y), "L-BFGS-B", jac=True, callback=path.append, options={"maxiter": 80}
)
new_x, new_y = pairs(N)
estimates = [
    [float(pnce.bounds.info_nce(critic(vector, *batch))) for batch in ((x, y), (new_x, new_y))] for vector in path
]

# %%
# The critic against the truth
# ----------------------------

axis = np.linspace(-2.5, 2.5, 80)
learned = critic(result.x, axis, axis)
exact = TRUTH + (2 * RHO * axis[:, None] * axis - RHO**2 * (axis[:, None] ** 2 + axis**2)) / (2 * (1 - RHO**2))
figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.5), layout="constrained")
left.plot(estimates, label=["training pairs", "new pairs"])
left.axhline(TRUTH, color="black", linewidth=1)
left.set_title(f"the truth is {TRUTH:.2f} nats")
left.set(xlabel="iteration", ylabel="InfoNCE bound, nats", ylim=(0, None))
left.legend(frameon=False, loc="lower right")
levels = np.linspace(-12, 2, 15)
for axes, values, title in ((middle, exact, "log ratio"), (right, learned, "critic")):
    axes.contourf(axis, axis, np.clip(values.T, -12, 2), levels=levels, cmap="viridis")
    axes.scatter(x, y, s=2, color="white", alpha=0.5)
    axes.set(title=title, xlabel="x", ylabel="y", xlim=(-2.5, 2.5), ylim=(-2.5, 2.5))
colours = plt.cm.ScalarMappable(Normalize(-12, 2), "viridis")
figure.colorbar(colours, ax=(middle, right), label="nats")
plt.show()

# %%
# Where there are samples (white), the critic is near the log ratio; far from them it is free.

print(f"truth {TRUTH:.3f}, on new pairs {estimates[-1][1]:.3f} nats")
