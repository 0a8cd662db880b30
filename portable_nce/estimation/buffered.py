"""Training of separable critics on NumPy in arrays that are made once.

The numbers are those of `critics.SEPARABLE` and of Adam in `training`, bit for bit, by the same operations in the same
order. Arrays of a batch are as large as those that an allocator returns to the system. A step on 256 pairs took 2.7 ms
with new arrays, and 1.4 ms with these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._core.protocol import Array
from .critics import OUTPUTS, RULED_OUT, separable_parts
from .features import CriticInputs, Pairs

__all__ = ["SeparableSteps"]


class _NetworkArrays:
    """Layers with arrays for the outputs of a fixed number of rows, and for their cotangents."""

    def __init__(self, np: Any, layers: Sequence[Array], gradients: Sequence[Array], rows: int) -> None:
        self.np, self.layers, self.gradients = np, layers, gradients
        self.outputs: list[Any] = [None, *(np.empty((rows, b.shape[0]), b.dtype) for b in layers[1::2])]
        self.cotangents = [np.empty_like(z) for z in self.outputs[1:-1]]

    def run(self, x: Array) -> Any:
        """Outputs of the last layer."""
        self.outputs[0] = x
        for k in range(0, len(self.layers), 2):
            found = self.outputs[k // 2 + 1]
            self.np.matmul(self.outputs[k // 2], self.layers[k], out=found)
            found += self.layers[k + 1]
            if k < len(self.layers) - 2:
                self.np.tanh(found, out=found)
        return self.outputs[-1]

    def pull(self, cotangent: Array) -> None:
        """Write the gradients of the layers; overwrites the outputs."""
        for k in range(len(self.layers) - 2, -1, -2):
            x = self.outputs[k // 2]
            self.np.matmul(x.T, cotangent, out=self.gradients[k])
            self.np.add.reduce(cotangent, axis=0, out=self.gradients[k + 1])
            if k:
                before = self.cotangents[k // 2 - 1]
                self.np.matmul(cotangent, self.layers[k].T, out=before)
                self.np.multiply(x, x, out=x)
                self.np.subtract(1.0, x, out=x)
                before *= x
                cotangent = before


class _CriticArrays:
    """Softmax and gradient of a critic for a fixed number of pairs."""

    def __init__(
        self, np: Any, parts: Sequence[Array], gradients: Sequence[Array], rows: int, exceptions: float
    ) -> None:
        self.np, self.parts, self.gradients, self.exceptions = np, parts, gradients, exceptions
        self.networks = [_NetworkArrays(np, parts[k : k + 6], gradients[k : k + 6], rows) for k in (3, 9)]
        dtype = parts[0].dtype
        self.scores, self.more = (np.empty((rows, rows), dtype) for _ in range(2))
        self.diagonal = self.scores.reshape(-1)[:: rows + 1]
        self.of_u, self.of_v = np.empty((rows, OUTPUTS), dtype), np.empty((rows, OUTPUTS + 1), dtype)

    def run(self, x: CriticInputs, y: CriticInputs) -> tuple[Any, Any]:
        """Probabilities of the positives without and with exceptions; leaves the softmax in `scores`."""
        np, scores, count = self.np, self.scores, self.scores.shape[0]
        u, v = (network.run(z.features) for network, z in zip(self.networks, (x, y), strict=True))
        self.a, self.b = x.coordinates * self.parts[0], y.coordinates * self.parts[1]
        if self.a.shape[1] == 1:  # as in `products`
            np.multiply(self.a, self.b.T, out=scores)
        else:
            np.matmul(self.a, self.b.T, out=scores)
        scores += np.add.reduce(self.b * self.b * self.parts[2], axis=1)
        scores += np.matmul(u, v[:, :OUTPUTS].T, out=self.more)
        scores += v[:, OUTPUTS]
        counts: Any = count
        if x.categories is not None and y.categories is not None:
            same = x.categories[:, None] == y.categories[None, :]
            np.copyto(scores, RULED_OUT, where=~same)
            counts = same.astype(scores.dtype).sum(axis=1)
        scores -= np.maximum.reduce(scores, axis=1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= np.add.reduce(scores, axis=1, keepdims=True)
        positives = (1.0 - self.exceptions) * self.diagonal
        return positives, positives + self.exceptions / counts

    def pull(self, x: CriticInputs, y: CriticInputs) -> None:
        """Write the gradient of the mean loss."""
        np, slopes, count = self.np, self.scores, self.scores.shape[0]
        positives, probabilities = self.run(x, y)
        self.diagonal -= 1.0
        slopes *= (positives / probabilities / count)[:, None]
        of_columns = np.add.reduce(slopes, axis=0)
        (left, right), a, b, of_v = self.networks, self.a, self.b, self.of_v
        u, v = left.outputs[-1], right.outputs[-1][:, :OUTPUTS]
        of_a = slopes @ b
        of_b = slopes.T @ a + 2.0 * of_columns[:, None] * b * self.parts[2]
        of_v[:, :OUTPUTS] = np.matmul(slopes.T, u, out=self.of_u)
        of_v[:, OUTPUTS] = of_columns
        left.pull(np.matmul(slopes, v, out=self.of_u))
        right.pull(of_v)
        np.add.reduce(of_a * x.coordinates, axis=0, out=self.gradients[0])
        np.add.reduce(of_b * y.coordinates, axis=0, out=self.gradients[1])
        np.add.reduce(of_columns[:, None] * b * b, axis=0, out=self.gradients[2])


class SeparableSteps:
    """Steps of Adam from `parameters`, on batches of the training pairs, with losses of the stopping pairs."""

    def __init__(self, np: Any, parameters: Array, train: Pairs, stop: Pairs, *, batch: int, exceptions: float) -> None:
        self.np, self.train, self.stop = np, train, stop
        self.vector: Any = np.array(parameters)
        self.gradient, self.first, self.second, self.spare, self.other = (np.zeros_like(self.vector) for _ in range(5))
        parts, gradients = (separable_parts(z, *train) for z in (self.vector, self.gradient))
        rows = min(batch, train.number)
        self.critic = _CriticArrays(np, parts, gradients, rows, exceptions)
        self.on_stop = _CriticArrays(np, parts, gradients, stop.number, exceptions)
        self.batch = [
            z._replace(coordinates=np.empty_like(z.coordinates[:rows]), features=np.empty_like(z.features[:rows]))
            for z in train
        ]

    @property
    def parameters(self) -> Array:
        """Copy of the parameters."""
        return self.vector.copy()

    def restart(self, parameters: Array) -> None:
        """Go on from these parameters, with the moments of the gradient."""
        self.vector[...] = parameters

    def loss(self) -> float:
        """Mean loss of the stopping pairs."""
        return float((-self.np.log(self.on_stop.run(*self.stop)[1])).mean())

    def step(self, numbers: Array, decay: float, scale: float, root: float) -> None:
        """Step on the training pairs of these numbers; `decay` multiplies the parameters."""
        np, g, m, v, spare, other = self.np, self.gradient, self.first, self.second, self.spare, self.other
        self.critic.pull(*(self._taken(z, into, numbers) for z, into in zip(self.train, self.batch, strict=True)))
        m *= 0.9
        m += np.multiply(g, 0.1, out=spare)
        v *= 0.999
        np.multiply(g, 0.001, out=spare)
        spare *= g
        v += spare
        np.sqrt(v, out=spare)
        spare *= root
        spare += 1e-8
        np.multiply(m, scale, out=other)
        other /= spare
        self.vector *= decay
        self.vector -= other

    def _taken(self, inputs: CriticInputs, into: CriticInputs, numbers: Array) -> CriticInputs:
        """Rows of these numbers, in the arrays of `into`; the columns' own scores are left out."""
        for x, y in ((inputs.coordinates, into.coordinates), (inputs.features, into.features)):
            x.take(numbers, axis=0, out=y, mode="clip")  # other modes copy first
        some = None if inputs.categories is None else inputs.categories[numbers]
        return into._replace(categories=some)
