"""
FlatNCE in small batches
========================

InfoNCE weights the gradient of each row by the probability that its positive is not found. In a small batch this is
soon small for most rows, and little gradient is left: the log-K curse (Chen et al. 2021, `arXiv:2107.01152
<https://arxiv.org/abs/2107.01152>`_). FlatNCE has the same gradient without that factor. Two encoders learn which left
half of a digit belongs to which right half, in batches of K digits, by both losses; each training sees each digit
equally often. It is the experiment of :doc:`../log_k_curse`, shortened.
"""

from dataclasses import replace

import log_k_curse
import matplotlib.pyplot as plt
import numpy as np

plan = replace(log_k_curse.QUICK, sizes=(16, 64, 256), epochs=6, seeds=4, probes=1)
ARMS = {"InfoNCE": log_k_curse.INFO, "FlatNCE": log_k_curse.GUIDE}
retrieval = {
    name: np.asarray([log_k_curse.learn(arm, log_k_curse.TEMPERATURE, size, plan).retrieval for size in plan.sizes])
    for name, arm in ARMS.items()
}

# %%
# How often the right half is found among 400 digits that took no part in the training.

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
for (name, shares), colour in zip(retrieval.items(), ("#0072b2", "#d55e00"), strict=True):
    mean = 100 * shares.mean(axis=1)
    left.plot(plan.sizes, mean, "o-", color=colour, label=name)
    left.fill_between(plan.sizes, 100 * shares.min(axis=1), 100 * shares.max(axis=1), color=colour, alpha=0.15)
left.set(xlabel="batch size K", ylabel="top-1 retrieval, %")

left.legend(frameon=False)
difference = 100 * (retrieval["FlatNCE"] - retrieval["InfoNCE"])
right.axhline(0, color="0.6", linewidth=0.8)
for seed in difference.T:
    right.plot(plan.sizes, seed, "o", color="0.6", markersize=4)
right.plot(plan.sizes, difference.mean(axis=1), "s-", color="black")
right.set(xlabel="batch size K", ylabel="FlatNCE minus InfoNCE, points")
for axes in (left, right):
    axes.set_xscale("log", base=2)
    axes.set_xticks(plan.sizes, [str(size) for size in plan.sizes])
plt.show()

# %%
# Dots are seeds. Nothing was tuned for FlatNCE. After six epochs this is a picture of speed as much as of quality;
# the :doc:`full experiment <../log_k_curse>` trains longer, also in bfloat16 and at low temperatures.

for size, row in zip(plan.sizes, difference, strict=True):
    print(f"K = {size:3}: {row.mean():+.1f} points, from {row.min():+.1f} to {row.max():+.1f} over {len(row)} seeds")
