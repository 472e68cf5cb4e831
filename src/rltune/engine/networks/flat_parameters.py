"""Store all parameters of a network in one flat tensor, and their gradients in another.

Clipping and the optimizer step are then a handful of operations, instead of several for each of a dozen small tensors.
The module's parameters become views into the flat tensor: state dicts, checkpoints and ``forward`` calls see the same
numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Array = NDArray[Any]

ALIGN = 16
"""Floats; each tensor starts on a cache line, as tensors that torch allocates do."""


class FlatParameters:
    """One flat tensor whose views are the parameters, and one whose views are their gradients.

    Args:
        params: Float parameters on one device. Their data is moved; the objects stay the same.
    """

    def __init__(self, params: Sequence[nn.Parameter]) -> None:
        self.params = list(params)
        self._spans: list[tuple[int, int]] = []
        offset = 0
        for param in self.params:
            self._spans.append((offset, param.numel()))
            offset += math.ceil(param.numel() / ALIGN) * ALIGN
        # Parameters are aligned, which leaves gaps. Gaps stay zero, because no gradient is written to them. So norms
        # over the whole flat tensor are exact, and optimizer steps do not change the gaps.
        first = self.params[0]
        self.data = torch.zeros(offset, device=first.device, dtype=first.dtype)
        self.grad = torch.zeros_like(self.data)
        self.grads = self.views(self.grad)
        self.grad_of = {id(param): view for param, view in zip(self.params, self.grads, strict=True)}
        with torch.no_grad():
            for param, view in zip(self.params, self.views(self.data), strict=True):
                view.copy_(param)
                # RLlib's optimizer and state dicts refer to the Parameter objects, so these are kept and only get new
                # memory.
                param.data = view

    @property
    def spans(self) -> Array:
        """The begin and end of each parameter in the flat tensor [parameters, 2]."""
        return np.array([(start, start + size) for start, size in self._spans], np.int64)

    def views(self, flat: Tensor) -> list[Tensor]:
        """Return views of a flat tensor in the shapes of the parameters."""
        return [
            flat[start : start + size].view(param.shape)
            for (start, size), param in zip(self._spans, self.params, strict=True)
        ]

    def adopt(self, tensors: Sequence[Tensor | None]) -> Tensor:
        """Copy one tensor per parameter into a new flat tensor; None becomes zeros."""
        flat = torch.zeros_like(self.data)
        for view, tensor in zip(self.views(flat), tensors, strict=True):
            if tensor is not None:
                view.copy_(tensor)
        return flat

    def attach_grads(self) -> None:
        """Set the gradients to zero, and let autograd add to the flat tensor; call this before each backward pass.

        Autograd adds to a ``grad`` that is there instead of replacing it, so it must be zero, and it must be the view.
        """
        self.grad.zero_()
        for param, view in zip(self.params, self.grads, strict=True):
            param.grad = view


def find_memory(params: Sequence[nn.Parameter]) -> Tensor:
    """Return the flat tensor that contains the parameters; move them into a new one if there is none."""
    storage = params[0].untyped_storage()
    if any(param.untyped_storage().data_ptr() != storage.data_ptr() for param in params):
        return FlatParameters(params).data
    return torch.empty(0, dtype=params[0].dtype).set_(storage)
