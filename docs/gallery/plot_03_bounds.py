"""
Bounds on mutual information against the truth
==============================================

Correlated Gaussians have a mutual information that is known. It steps from 2 to 10 nats while critics are trained on
batches of 64 pairs, of which InfoNCE can show no more than log 64 = 4.16 nats. This is the experiment of
:doc:`../gaussians` with a quarter of its steps and six of its estimators.
"""

import gaussians
import matplotlib.pyplot as plt
import numpy as np

STEPS = 200
NAMES = ("info_nce", "nwj", "interpolated, α = 0.01", "smile, clip 5", "anchor, mean of scores", "club, known density")
found = {name: gaussians.course(name, STEPS, seed=0) for name in NAMES}

# %%
# The stairs are the truth, the dashed line is InfoNCE's ceiling. Faint: each batch. Strong: running median.

estimators = {estimator.name: estimator for estimator in gaussians.ESTIMATORS}
figure, grid = plt.subplots(2, 3, figsize=(10, 5.4), sharex=True, sharey=True, layout="constrained")
for axes, name in zip(grid.ravel(), NAMES, strict=True):
    gaussians.panel(axes, estimators[name], found[name])
    axes.set_title(f"{name} ({estimators[name].kind})", fontsize=10)
figure.supxlabel("step")
figure.supylabel("mutual information, nats")
plt.show()

# %%
# - ``info_nce`` stops at its ceiling, whatever the critic learns.
# - ``nwj`` has no ceiling; its variance grows with the information until training breaks down.
# - ``smile`` and the mean of the anchor's scores come nearer to the truth, and are no bounds.
# - ``club`` knows the conditional density, and is above the truth by d ρ² / (1 − ρ²) − I.

for name in NAMES:
    medians = np.median(gaussians.last(found[name]), axis=1)
    print(f"{name:24}", "  ".join(f"{value:6.2f}" for value in medians))

# %%
# :doc:`../mutual-information` says when to take which.
