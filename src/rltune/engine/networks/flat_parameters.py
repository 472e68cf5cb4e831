"""Hold a network's parameters and gradients in one flat tensor each.

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
    """One flat tensor behind ``params``, and one behind their gradients.

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
        # The gaps between parameters stay zero, because no gradient is ever written into them. So norms over the whole
        # tensor are exact, and optimizer steps leave the gaps alone.
        first = self.params[0]
        self.data = torch.zeros(offset, device=first.device, dtype=first.dtype)
        self.grad = torch.zeros_like(self.data)
        self.grads = self.views(self.grad)
        self.grad_of = {id(param): view for param, view in zip(self.params, self.grads, strict=True)}
        with torch.no_grad():
            for param, view in zip(self.params, self.views(self.data), strict=True):
                view.copy_(param)
                # RLlib's optimizer and state dicts refer to the Parameter objects, so only the memory behind the
                # objects is replaced.
                param.data = view

    @property
    def spans(self) -> Array:
        """Where each parameter begins and ends [parameters, 2]."""
        return np.array([(start, start + size) for start, size in self._spans], np.int64)

    def views(self, flat: Tensor) -> list[Tensor]:
        """Cut ``flat`` into the parameters' shapes."""
        return [
            flat[start : start + size].view(param.shape)
            for (start, size), param in zip(self._spans, self.params, strict=True)
        ]

    def adopt(self, tensors: Sequence[Tensor | None]) -> Tensor:
        """Copy ``tensors`` (one per parameter; None gives zeros) into a new flat tensor."""
        flat = torch.zeros_like(self.data)
        for view, tensor in zip(self.views(flat), tensors, strict=True):
            if tensor is not None:
                view.copy_(tensor)
        return flat

    def attach_grads(self) -> None:
        """Let autograd accumulate into the flat gradient; call before each backward pass.

        Autograd adds to a ``grad`` that is there instead of replacing it, so it must be zero, and it must be the view.
        """
        self.grad.zero_()
        for param, view in zip(self.params, self.grads, strict=True):
            param.grad = view


def find_memory(params: Sequence[nn.Parameter]) -> Tensor:
    """Return the flat tensor behind the parameters; without such a tensor, move the parameters into a new one."""
    storage = params[0].untyped_storage()
    if any(param.untyped_storage().data_ptr() != storage.data_ptr() for param in params):
        return FlatParameters(params).data
    return torch.empty(0, dtype=params[0].dtype).set_(storage)
