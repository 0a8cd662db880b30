"""
A new array library in one file
===============================

Any library that follows the array API can be used, without a release of this package. ``metered`` is such a library, in
one file of 160 lines: NumPy's arrays in a box, which count what is computed on them. The package knows nothing of it.
Here its counts show what a loss costs.
"""

import matplotlib.pyplot as plt
import numpy as np

import portable_nce as pnce

import metered

pnce.register_backend("metered")  # its arrays are differentiated by the tape

rng = np.random.default_rng(0)
x, y = (metered.asarray(z) for z in rng.normal(size=(2, 64, 16)))
value, gradients = pnce.value_and_grad(pnce.info_nce, argnums=(0, 1))(x, y)
print(type(value).__module__, float(value), [gradient.shape for gradient in gradients])

# %%
# What is counted
# ---------------
#
# Calls of each function in the value alone, and in value and gradient, with the matrix held as a whole and in blocks of
# 16 rows. The gradient takes two more matrix products for each tile, and no further exponential of the scores.

NAMES = ("matmul", "exp", "sum", "max", "mul", "where")
CALLS = {
    "value, whole": (False, None),
    "value and gradient, whole": (True, None),
    "value, 4 blocks": (False, 16),
    "value and gradient, 4 blocks": (True, 16),
}
counts = {}
for name, (gradient, block_size) in CALLS.items():
    function = pnce.value_and_grad(pnce.info_nce, argnums=(0, 1)) if gradient else pnce.info_nce
    metered.COUNTS.clear()
    function(x, y, block_size=block_size)
    counts[name] = [metered.COUNTS[function_name] for function_name in NAMES]

figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
for k, (name, numbers) in enumerate(counts.items()):
    bars = axes.bar(np.arange(len(NAMES)) + 0.2 * (k - 1.5), numbers, width=0.19, label=name)
    axes.bar_label(bars, fontsize=7)
axes.set(xticks=range(len(NAMES)), xticklabels=NAMES, ylabel="calls")
axes.legend(frameon=False)
plt.show()

# %%
# :doc:`../conformance` says how to announce an adapter by an entry point, and how to run the conformance suite, of some
# 6500 tests, on a library of your own. ``metered`` stands in ``tests/plugin/metered``.
