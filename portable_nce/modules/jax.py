"""Gradient caching for JAX: the backward pass of an encoder holds the activations of one chunk at a time.

The package does not import this module. JAX models are functions of parameters, so there are no classes; a learned
scale is a parameter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .._core.checks import check_callable, check_whole_number

__all__ = ["encode_in_chunks"]

__dir__ = __all__.copy  # what completion offers


def encode_in_chunks(
    encoder: Callable[..., Any], /, *inputs: Any, chunk_size: int, key: jax.Array | None = None
) -> Any:
    """Return the encoding of a batch in chunks; the backward pass holds the activations of one chunk.

    This is gradient caching (GradCache): the loss sees the embeddings of the whole batch, but the encoder's activations
    are held for one chunk only. The embeddings are computed once by `jax.lax.map`. In the backward pass,
    `jax.checkpoint` recomputes each chunk with the same key and its rows of the embeddings' gradient. Gradients equal
    those of the encoder called chunk by chunk, also for parameters that it closes over. It works under `jax.jit`,
    `jax.grad`, `jax.vmap` and `jax.shard_map`.

    Parameters
    ----------
    encoder : callable
        Pure function of a part of the batch and, with `key`, of a key.
    *inputs : Any
        Arguments of the encoder: arrays whose first axis is the batch, or pytrees of them.
    chunk_size : int
        Rows per chunk; the last may have fewer.
    key : jax.Array, optional
        Random key, split over the chunks and passed as the last argument of the encoder.

    Returns
    -------
    Any
        Output of the encoder, an array or a pytree, with the rows of all chunks concatenated. A 0-d output, such as a
        scale or a mean over rows, is averaged, weighted by rows.

    Raises
    ------
    TypeError
        If `encoder` is not callable, or `chunk_size` is not an integer.
    ValueError
        If `chunk_size` is not positive, there is no array, arrays have different numbers of rows, or an output lacks
        the rows of its chunk.

    References
    ----------
    Gao, Zhang, Han and Callan (2021), "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup",
    arXiv:2101.06983.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> import portable_nce as pnce
    >>> from portable_nce.modules.jax import encode_in_chunks
    >>> def loss(weights, image, text):
    ...     image = encode_in_chunks(lambda x: jnp.tanh(x @ weights), image, chunk_size=4)
    ...     return pnce.info_nce(image, text)
    >>> image, text = jax.random.normal(jax.random.key(0), (2, 10, 3))
    >>> jax.jit(jax.grad(loss))(jnp.eye(3), image, text).shape
    (3, 3)
    """
    check_callable("encoder", encoder)
    chunk_size = check_whole_number("chunk_size", chunk_size)
    counts = sorted({jnp.shape(x)[:1] for x in jax.tree.leaves(inputs)})
    if len(counts) != 1 or not counts[0] or not counts[0][0]:
        raise ValueError(f"inputs: expected arrays with as many rows each, one at least, got {[*map(list, counts)]}")
    ((rows,),) = counts
    chunk_size = min(chunk_size, rows)
    count, rest = divmod(rows, chunk_size)
    keys = () if key is None else (jax.random.split(key, count + bool(rest)),)
    whole = count * chunk_size
    parts = [_mapped(encoder, jax.tree.map(lambda x: x[:whole], inputs), [k[:count] for k in keys], chunk_size)]
    if rest:
        parts.append(_mapped(encoder, jax.tree.map(lambda x: x[whole:], inputs), [k[count:] for k in keys], rest))
    sizes = [chunk_size, rest][: len(parts)]
    return jax.tree.map(lambda *arrays: _joined(arrays, sizes, rows), *parts)


def _mapped(encoder: Callable[..., Any], inputs: tuple[Any, ...], keys: list[jax.Array], size: int) -> Any:
    """Stacked outputs of the chunks."""
    chunks = jax.tree.map(lambda x: jnp.reshape(x, (-1, size, *x.shape[1:])), inputs)
    count = len(jax.tree.leaves(chunks)[0])
    # XLA unrolls a loop of one step, and would merge the recomputation with the first pass.
    run = jax.checkpoint(encoder, prevent_cse=count == 1)
    return jax.lax.map(lambda chunk: run(*chunk), (*chunks, *keys))


def _joined(arrays: tuple[jax.Array, ...], sizes: list[int], rows: int) -> jax.Array:
    """Concatenated rows of all chunks, or the weighted mean of numbers."""
    if arrays[0].ndim == 1:
        dtype = arrays[0].dtype if jnp.issubdtype(arrays[0].dtype, jnp.floating) else jnp.result_type(float)
        wide = jnp.promote_types(dtype, jnp.float32)
        total: Any = sum(size * jnp.sum(x.astype(wide)) for x, size in zip(arrays, sizes, strict=True))
        mean: jax.Array = (total / rows).astype(dtype)
        return mean
    for x, size in zip(arrays, sizes, strict=True):
        if x.shape[1] != size:
            raise ValueError(
                f"encoder: expected an output with the {size} rows of its chunk, or a number, got shape {x.shape[1:]}"
            )
    return jnp.concat([jnp.reshape(x, (-1, *x.shape[2:])) for x in arrays])
