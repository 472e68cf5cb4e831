"""Do the gradient steps of SAC.

The losses are those of ``SACTorchLearner`` of ray 2.60, or squared errors for the critics. All gradients are taken at
the same weights, then the parameters step. `rltune.engine.off_policy.sac` says how the gradients come about.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ray.rllib.utils.numpy import MAX_LOG_NN_OUTPUT, MIN_LOG_NN_OUTPUT

from rltune.engine.kernels.compiler import kernel
from rltune.engine.kernels.perceptron import backward, count_outputs, find_width, forward
from rltune.engine.kernels.steps import make_blank, step

Array = NDArray[Any]

LOWEST, HIGHEST = float(MIN_LOG_NN_OUTPUT), float(MAX_LOG_NN_OUTPUT)
LOG_2, LOG_SQRT_2PI = math.log(2.0), 0.5 * math.log(2.0 * math.pi)


@kernel
def _draw(dist, noise, actions, logp):  # type: ignore[no-untyped-def]
    """Draw from the squashed Gaussian as `rltune.engine.off_policy.sac.squash` does, into the last two arguments."""
    f = np.float32
    rows, size = noise.shape
    low, high, half, two, zero = f(LOWEST), f(HIGHEST), f(0.5), f(2.0), f(0.0)
    constant, log_2 = f(LOG_SQRT_2PI), f(LOG_2)
    for i in range(rows):
        total = zero
        for j in range(size):
            log_std = dist[i, size + j]
            log_std = high if log_std > high else log_std
            log_std = low if log_std < low else log_std
            raw = dist[i, j] + math.exp(log_std) * noise[i, j]
            # The softplus log(1 + exp(-2 raw)) is computed so that no exponential overflows.
            softplus = math.log1p(math.exp(-two * abs(raw))) + (-two * raw if raw < zero else zero)
            total -= half * noise[i, j] * noise[i, j] + log_std + constant + two * (log_2 - raw - softplus)
            actions[i, j] = math.tanh(raw)
        logp[i] = total


@kernel
def _differentiate_policy(dist, noise, actions, slopes, alpha, grad):  # type: ignore[no-untyped-def]
    """Write the gradient of the mean of alpha * logp - value by the policy's outputs into ``grad``.

    Args:
        dist: The policy's outputs [rows, 2 * size].
        noise: Standard normal [rows, size].
        actions: What `_draw` made of both [rows, size].
        slopes: The gradient of the mean of -value by the actions [rows, size].
        alpha: The temperature.
        grad: [rows, 2 * size].
    """
    f = np.float32
    rows, size = noise.shape
    low, high, one, share = f(LOWEST), f(HIGHEST), f(1.0), f(1.0 / rows)
    for i in range(rows):
        for j in range(size):
            log_std, action = dist[i, size + j], actions[i, j]
            # d action / d raw = 1 - action^2, and the Jacobian's term of logp has d / d raw = 2 action.
            raw_grad = slopes[i, j] * (one - action * action) + f(2.0) * share * alpha * action
            grad[i, j] = raw_grad
            # Since raw = mean + std * noise, log_std gets raw's gradient times std * noise, and -1 from its own term of
            # logp.
            grad[i, size + j] = raw_grad * math.exp(log_std) * noise[i, j] - alpha * share
            if log_std < low or log_std > high:
                grad[i, size + j] = f(0.0)


@kernel
def update(  # type: ignore[no-untyped-def]
    policy, critics, count, temperature, policy_layers, critic_layers, targets, huber,
    batch, weights, noise, entropy, rates,
):  # fmt: skip
    """Do one gradient step.

    Args:
        policy: Its `Parameters`.
        critics: Those of both critics; twice the same if there is one.
        count: The number of critics.
        temperature: The `Parameters` of the temperature's logarithm.
        policy_layers: The layers from observations to means and log standard deviations.
        critic_layers: The layers from observation and action to the value.
        targets: The flat parameters of both target critics.
        huber: Whether the critics have the Huber loss of their errors, else half the squared error.
        batch: Rows of the replay memory.
        weights: Their importance [rows].
        noise: Standard normal, for the present and for the next actions [2, rows, size].
        entropy: The target entropy.
        rates: The learning rates of the critics, the policy and the temperature.

    Returns:
        The critics' errors [critics, rows], log probabilities [rows], values of the policy's actions [rows], the
        temperature, the gradient of its logarithm, and the gradients' norms, in the order of the arguments.
    """
    f = np.float32
    rows, size = noise.shape[1], noise.shape[2]
    width, share, one = (batch.shape[1] - size - 2) // 2, f(1.0 / batch.shape[0]), f(1.0)
    alpha = f(math.exp(temperature.data[0]))
    policy_outputs = np.empty(rows * count_outputs(policy_layers), f)
    critic_outputs = np.empty((2, rows * count_outputs(critic_layers)), f)
    room = rows * max(find_width(policy_layers), find_width(critic_layers))
    delta, spare = np.empty(room, f), np.empty(room, f)
    obs, pair = np.empty((rows, width), f), np.empty((rows, width + size), f)
    actions, logp, least = np.empty((rows, size), f), np.empty(rows, f), np.empty(rows, f)
    # Compute the soft value of the next observations.
    obs[:] = batch[:, width : 2 * width]
    _draw(forward(obs, policy_layers, policy.data, policy_outputs), noise[1], actions, logp)
    pair[:, :width], pair[:, width:] = obs, actions
    _find_least(pair, critic_layers, targets[0], targets[1], count, critic_outputs, least)
    wanted = np.empty(rows, f)
    for i in range(rows):
        wanted[i] = batch[i, -2] + batch[i, -1] * (least[i] - alpha * logp[i])
    # Compute the gradients of the critics.
    obs[:] = batch[:, :width]
    pair[:, :width], pair[:, width:] = obs, batch[:, 2 * width : 2 * width + size]
    errors = np.empty((count, rows), f)
    for k in range(count):
        p = critics[k]
        values = forward(pair, critic_layers, p.data, critic_outputs[k])
        for i in range(rows):
            slope = errors[k, i] = values[i, 0] - wanted[i]
            if huber:  # The Huber loss's slope is the clipped error. NaN passes, because it fails comparisons.
                slope = one if slope > one else slope
                slope = -one if slope < -one else slope
            delta[i] = slope * weights[i] * share
        backward(pair, critic_layers, p.data, p.grad, critic_outputs[k], delta, spare, False)
    # Compute the gradient of the policy, through the drawn action and the smaller of the two critics' values.
    dist = forward(obs, policy_layers, policy.data, policy_outputs)
    _draw(dist, noise[0], actions, logp)
    pair[:, width:] = actions
    smaller = _find_least(pair, critic_layers, critics[0].data, critics[1].data, count, critic_outputs, least)
    slopes = np.zeros((rows, size), f)
    for k in range(count):
        for i in range(rows):
            delta[i] = -share if smaller[i] == k else f(0.0)
        p = critics[k]
        into = backward(pair, critic_layers, p.data, p.grad, critic_outputs[k], delta, spare, True, False)
        for i in range(rows):
            for j in range(size):
                slopes[i, j] += into[i * (width + size) + width + j]
    _differentiate_policy(dist, noise[0], actions, slopes, alpha, delta[: dist.size].reshape(dist.shape))
    backward(obs, policy_layers, policy.data, policy.grad, policy_outputs, delta, spare, False)
    # The temperature's loss is log_alpha * surplus, so its gradient is the surplus itself.
    surplus = f(-(logp.sum() * share + entropy))
    temperature.grad[0] = surplus
    norms = np.empty(2 + count, f)
    norms[0] = step(policy, rates[1])
    for k in range(count):
        norms[1 + k] = step(critics[k], rates[0])
    norms[1 + count] = step(temperature, rates[2])
    return errors, logp, least, alpha, surplus, norms


@kernel
def _find_least(pair, layers, first, second, count, outputs, least):  # type: ignore[no-untyped-def]
    """Write the smaller values of both critics [rows]; return whose they are, the first's where both are the same."""
    values = forward(pair, layers, first, outputs[0])
    whose = np.zeros(values.shape[0], np.int64)
    least[:] = values[:, 0]
    if count == 2:
        values = forward(pair, layers, second, outputs[1])
        for i in range(whose.size):
            if not least[i] <= values[i, 0]:  # A NaN counts as the smaller value, as in torch.
                whose[i] = 1
                least[i] = values[i, 0] if least[i] == least[i] else least[i]
    return whose


def warm_up() -> None:
    """Call the kernel once, on one row."""
    floats, p = np.zeros(16, np.float32), make_blank(16)
    policy, critic = np.array([[0, 2, 1, 2, 0]], np.int64), np.array([[0, 2, 2, 1, 0]], np.int64)
    row, noise = np.zeros((1, 5), np.float32), np.zeros((2, 1, 1), np.float32)
    update(p, (p, p), 2, p, policy, critic, (floats, floats), True, row, row[0, :1], noise, -1.0, (0.1, 0.1, 0.1))
