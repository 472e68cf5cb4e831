"""Hold a network's parameters and gradients in one flat tensor each."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

ALIGN = 16
"""Floats; each tensor starts on a cache line, which the matrix products like."""


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
        first = self.params[0]
        self.data = torch.zeros(offset, device=first.device, dtype=first.dtype)
        self.grad = torch.zeros_like(self.data)
        self.grads = self.views(self.grad)
        self.grad_of = {id(param): view for param, view in zip(self.params, self.grads, strict=True)}
        with torch.no_grad():
            for param, view in zip(self.params, self.views(self.data), strict=True):
                view.copy_(param)
                param.data = view

    def views(self, flat: Tensor) -> list[Tensor]:
        """``flat`` cut into the parameters' shapes."""
        return [
            flat[start : start + size].view(param.shape)
            for (start, size), param in zip(self._spans, self.params, strict=True)
        ]

    def adopt(self, tensors: Sequence[Tensor | None]) -> Tensor:
        """A flat tensor holding ``tensors`` (one per parameter; zeros for None)."""
        flat = torch.zeros_like(self.data)
        for view, tensor in zip(self.views(flat), tensors, strict=True):
            if tensor is not None:
                view.copy_(tensor)
        return flat

    def attach_grads(self) -> None:
        """Let autograd accumulate into the flat gradient; call before each backward pass."""
        self.grad.zero_()
        for param, view in zip(self.params, self.grads, strict=True):
            param.grad = view
