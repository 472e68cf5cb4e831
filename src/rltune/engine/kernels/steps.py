"""Clip a flat gradient as RLlib does, and step flat parameters as torch's optimizers do."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rltune.engine.kernels.compiler import kernel

Array = NDArray[Any]

NO_CLIPPING, BY_VALUE, BY_NORM, BY_GLOBAL_NORM = range(4)
CLIPPING = {"value": BY_VALUE, "norm": BY_NORM, "global_norm": BY_GLOBAL_NORM}
"""RLlib's names of ``grad_clip_by``."""


class Parameters(NamedTuple):
    """Flat parameters, and what steps them.

    Attributes:
        data: The parameters.
        grad: Their gradient.
        spans: Where each tensor begins and ends [tensors, 2].
        mean: Adam's running average of the gradient; empty for RMSprop.
        square: The running average of the squared gradient.
        steps: The steps so far, an array of one number.
        mean_decay: Adam's first beta.
        square_decay: Adam's second beta, or RMSprop's alpha.
        epsilon: What is added to the root.
        clip_by: One of the constants above.
        clip_limit: The largest value or norm.
    """

    data: Array
    grad: Array
    spans: Array
    mean: Array
    square: Array
    steps: Array
    mean_decay: float
    square_decay: float
    epsilon: float
    clip_by: int
    clip_limit: float


def make_blank(size: int) -> Parameters:
    """Return parameters that are all zero, to call a kernel with before there is a network."""
    data, grad, mean, square = np.zeros((4, size), np.float32)
    spans, steps = np.array([[0, size]]), np.zeros(1, np.float32)
    return Parameters(data, grad, spans, mean, square, steps, 0.9, 0.999, 1e-8, BY_GLOBAL_NORM, 0.5)


@kernel
def clip_norm(grad, limit, margin):  # type: ignore[no-untyped-def]
    """Scale a gradient by ``limit / (norm + margin)`` where that is less than 1, and return the norm before."""
    total = np.float32(0.0)
    for i in range(grad.size):
        total += grad[i] * grad[i]
    norm = math.sqrt(total)
    factor = np.float32(limit) / (norm + np.float32(margin))
    if not factor >= 1.0:  # If the norm is NaN, then all gradients become NaN.
        for i in range(grad.size):
            grad[i] *= factor
    return norm


@kernel
def step(p, lr):  # type: ignore[no-untyped-def]
    """Clip the gradient and do one step; return the gradient's norm before, if it is clipped by the global norm."""
    norm = np.float32(0.0)
    if p.clip_by == BY_GLOBAL_NORM:
        norm = clip_norm(p.grad, p.clip_limit, 1e-6)  # The margin 1e-6 is RLlib's.
    elif p.clip_by == BY_NORM:
        for k in range(p.spans.shape[0]):
            clip_norm(p.grad[p.spans[k, 0] : p.spans[k, 1]], p.clip_limit, 0.0)
    elif p.clip_by == BY_VALUE:
        limit = np.float32(p.clip_limit)
        for i in range(p.grad.size):
            g = p.grad[i]
            g = limit if g > limit else g
            p.grad[i] = -limit if g < -limit else g
    p.steps[0] += np.float32(1.0)
    if p.mean.size:
        _adam(p, lr)
    else:
        _rmsprop(p, lr)
    return norm


@kernel
def _adam(p, lr):  # type: ignore[no-untyped-def]
    """Do a step of ``torch.optim.Adam``."""
    f, data, grad, mean, square = np.float32, p.data, p.grad, p.mean, p.square
    rate = f(lr / (1.0 - p.mean_decay ** p.steps[0]))
    root = f(1.0 / math.sqrt(1.0 - p.square_decay ** p.steps[0]))
    keep, add = f(p.mean_decay), f(1.0 - p.mean_decay)
    square_keep, square_add, epsilon = f(p.square_decay), f(1.0 - p.square_decay), f(p.epsilon)
    for i in range(data.size):
        g = grad[i]
        mean[i] = keep * mean[i] + add * g
        square[i] = square_keep * square[i] + square_add * g * g
        data[i] -= rate * mean[i] / (math.sqrt(square[i]) * root + epsilon)


@kernel
def _rmsprop(p, lr):  # type: ignore[no-untyped-def]
    """Do a step of ``torch.optim.RMSprop``, without momentum and not centered."""
    f, data, grad, square = np.float32, p.data, p.grad, p.square
    rate, keep, add, epsilon = f(lr), f(p.square_decay), f(1.0 - p.square_decay), f(p.epsilon)
    for i in range(data.size):
        g = grad[i]
        square[i] = keep * square[i] + add * g * g
        data[i] -= rate * g / (math.sqrt(square[i]) + epsilon)
