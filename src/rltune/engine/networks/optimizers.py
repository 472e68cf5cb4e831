"""Clip gradients and update parameters by a few operations on flat tensors.

The state of RLlib's optimizer becomes views into flat tensors: its state dicts and checkpoints stay true, while a step
is one operation on all parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from rltune.engine.kernels.steps import CLIPPING, NO_CLIPPING, Parameters
from rltune.engine.networks.flat_parameters import FlatParameters

Step = TypeVar("Step", bound=Callable[..., Any])


def clip_gradients(flat: FlatParameters, limit: float | None, by: str) -> Tensor | None:
    """Clip the flat gradient as RLlib's ``clip_gradients`` does, without copying a number from the GPU.

    Args:
        limit: RLlib's ``grad_clip``; None leaves the gradient as it is.
        by: RLlib's ``grad_clip_by``: ``value``, ``norm`` (each tensor) or ``global_norm``.

    Returns:
        The global norm before clipping, in mode ``global_norm``.
    """
    if not limit:
        return None
    if by == "value":
        flat.grad.clamp_(-limit, limit)
        return None
    if by == "norm":
        # An `if` would wait until the GPU has computed the norm; torch.where does not wait.
        norms = torch.stack(torch._foreach_norm(flat.grads))
        factors = torch.where(norms > limit, limit / norms, torch.ones_like(norms))
        torch._foreach_mul_(flat.grads, list(factors.unbind()))
        return None
    # As in RLlib, gradients are multiplied by limit / max(limit, norm + 1e-6), at most 1, without reading the norm.
    norm: Tensor = torch.linalg.vector_norm(flat.grad)
    flat.grad.mul_((limit / (norm + 1e-6).clamp_(min=limit)).clamp_(max=1.0))
    return norm


class FlatOptimizer:
    """An optimizer on flat tensors that shares its state with RLlib's optimizer; subclasses define the update.

    Args:
        optimizer: RLlib's optimizer of the same parameters, new or just restored.

    Attributes:
        moments: The optimizer's running averages, flat, in the order of ``KEYS``.
        count: Steps so far, as a tensor of one number.
    """

    KEYS: tuple[str, ...]

    def __init__(self, flat: FlatParameters, optimizer: torch.optim.Optimizer) -> None:
        self.flat, self.optimizer = flat, optimizer
        states: list[dict[str, Any]] = [optimizer.state.get(param, {}) for param in flat.params]
        # RLlib saves the state of its own optimizer. That state consists of views of the flat tensors, so it is always
        # current.
        self.moments = [flat.adopt([state.get(key) for state in states]) for key in self.KEYS]
        # RLlib updates all parameters at the same time, so all have the same step count.
        steps = [float(state["step"]) for state in states if "step" in state]
        self.count = torch.tensor(max(steps, default=0.0), device=flat.data.device)
        views = [flat.views(moment) for moment in self.moments]
        for param, *parts in zip(flat.params, *views, strict=True):
            optimizer.state[param] = {"step": self.count, **dict(zip(self.KEYS, parts, strict=True))}

    def step(self, lr: float) -> None:
        """Update the parameters by one step with the flat gradient."""
        raise NotImplementedError

    def describe(self, config: Any) -> Parameters | None:
        """Return parameters, state and clipping for the kernels, as NumPy views of the same memory; None on a GPU."""
        flat = self.flat
        if flat.data.device.type != "cpu":
            return None
        limit = float(config.grad_clip or 0.0)
        # RMSprop only has a running average of squares, so the average of gradients is empty.
        mean, square = [torch.zeros(0), *self.moments][-2:]
        return Parameters(
            flat.data.numpy(),
            flat.grad.numpy(),
            flat.spans,
            mean.numpy(),
            square.numpy(),
            self.count.view(1).numpy(),
            *self.numbers(),
            CLIPPING[config.grad_clip_by] if limit else NO_CLIPPING,
            limit,
        )

    def numbers(self) -> tuple[float, float, float]:
        """Return the decay rates of the averages of gradients (0 if there is none) and of squares, and epsilon."""
        raise NotImplementedError


class FlatAdam(FlatOptimizer):
    """``torch.optim.Adam`` on a flat tensor."""

    KEYS = ("exp_avg", "exp_avg_sq")

    def __init__(self, flat: FlatParameters, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(flat, optimizer)
        group = optimizer.param_groups[0]
        self.beta1, self.beta2 = (float(beta) for beta in group["betas"])
        self.eps = float(group["eps"])

    def numbers(self) -> tuple[float, float, float]:
        """Return Adam's two betas and epsilon."""
        return self.beta1, self.beta2, self.eps

    def step(self, lr: float) -> None:
        """Update the parameters by one step with the flat gradient."""
        self.count += 1
        # torch._fused_adam_ is what Adam(fused=True) calls, without about 40 microseconds of Python overhead.
        torch._fused_adam_(
            [self.flat.data],
            [self.flat.grad],
            [self.moments[0]],
            [self.moments[1]],
            [],
            [self.count],
            lr=lr,
            beta1=self.beta1,
            beta2=self.beta2,
            weight_decay=0.0,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
        )


class FlatRMSprop(FlatOptimizer):
    """``torch.optim.RMSprop`` (no momentum, not centered) on a flat tensor."""

    KEYS = ("square_avg",)

    def __init__(self, flat: FlatParameters, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(flat, optimizer)
        group = optimizer.param_groups[0]
        self.alpha, self.eps = float(group["alpha"]), float(group["eps"])

    def numbers(self) -> tuple[float, float, float]:
        """Return 0, RMSprop's alpha and epsilon."""
        return 0.0, self.alpha, self.eps

    def step(self, lr: float) -> None:
        """Update the parameters by one step, in the same order of operations as ``torch.optim.RMSprop``."""
        self.count += 1
        (square,), grad = self.moments, self.flat.grad
        square.mul_(self.alpha).addcmul_(grad, grad, value=1.0 - self.alpha)
        self.flat.data.addcdiv_(grad, square.sqrt().add_(self.eps), value=-lr)


def make_flat_optimizer(flat: FlatParameters, optimizer: torch.optim.Optimizer) -> FlatOptimizer:
    """Build the optimizer on flat tensors that corresponds to RLlib's optimizer."""
    return (FlatRMSprop if isinstance(optimizer, torch.optim.RMSprop) else FlatAdam)(flat, optimizer)


def compile_step(step: Step, optimizers: Sequence[Any], config: Any) -> Step:
    """Compile a gradient step by torch if RLlib's setting ``torch_compile_learner`` is on.

    Args:
        optimizers: The flat optimizers that it calls.
        config: RLlib's config, with backend and mode.
    """
    if not config.torch_compile_learner:
        return step
    # TorchDynamo cannot trace the fused optimizer operations (torch 2.13), so they stay outside of the compiled graph.
    untraced: Any = torch.compiler.disable
    for optimizer in optimizers:
        optimizer.step = untraced(optimizer.step)
    backend, mode = config.torch_compile_learner_dynamo_backend, config.torch_compile_learner_dynamo_mode
    return cast(Step, torch.compile(step, backend=backend, mode=mode))
