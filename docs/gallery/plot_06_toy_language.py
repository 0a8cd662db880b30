"""
The density of a toy language
=============================

A language of 300 words, each depending on the last one, has probabilities that are known. A model learns them from text
and noise, by the losses of :mod:`portable_nce.density`. How far is it from the truth, and is it normalised by itself?
It is the experiment of :doc:`../toy_language` with a sixth of its steps.
"""

import matplotlib.pyplot as plt
import toy_language

STEPS, SAMPLES = 500, 20
language = toy_language.make_language()
courses = {
    estimator: toy_language.train(language, estimator, SAMPLES, STEPS, seed=0) for estimator in toy_language.ESTIMATORS
}
steps = toy_language.checkpoints(STEPS)

# %%
# Left, the divergence from the truth; dash-dotted, the same scores read by ``density.recover_log_prob``. Right, the
# logarithm of the partition function, which is 0 for a model whose probabilities sum to one.

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
for estimator, course in courses.items():
    style = {"color": estimator.colour, "linewidth": 1.8}
    left.plot(steps, course.divergence, estimator.dashes, label=estimator.name, **style)
    if estimator.without_q:
        left.plot(steps, course.recovered, "-.", label=f"{estimator.name}, recovered", **style)
    right.plot(steps, course.mean, estimator.dashes, **style)
left.set(xscale="log", yscale="log", xlabel="step", ylabel="KL(p ‖ model), nats")
right.axhline(0.0, color="0.6", linewidth=0.8)
right.set(xscale="log", xlabel="step", ylabel="log Z, mean over contexts, nats")
figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=9)
plt.show()

# %%
# Local NCE alone brings log Z to 0; it is slower on the way. The ranking losses and the exact softmax find the density
# and leave log Z where it was. Without the noise's density q, scores head for log p / q, from which the density is
# recovered.

for estimator, course in courses.items():
    print(f"{estimator.name:24} KL {course.divergence[-1]:.3f}   log Z {course.mean[-1]:+.2f}")
