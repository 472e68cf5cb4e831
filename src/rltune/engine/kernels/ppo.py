"""Do the minibatch steps of PPO and A2C.

The loss is ``PPOTorchLearner.compute_loss_for_module`` of ray 2.60: clipped surrogate (Schulman et al. 2017), value
loss clipped at its square, entropy bonus, KL penalty. Its gradient by the distribution's inputs and by the values is
elementary. `rltune.engine.on_policy.ppo_loss` has the loss itself, for torch.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rltune.engine.kernels.compiler import kernel
from rltune.engine.kernels.perceptron import (
    INPUTS,
    backward,
    count_outputs,
    cut_flags,
    find_width,
    forward,
    mask_outputs,
)
from rltune.engine.kernels.steps import make_blank, step
from rltune.engine.on_policy.ppo_loss import PPOBatch, PPOCoefficients

Array = NDArray[Any]


class Network(NamedTuple):
    """RLlib's default PPO module, as tables of layers.

    Attributes:
        encoder: The layers that both heads share; none if each has its own.
        policy: The layers up to the distribution's inputs.
        value: The layers up to the value.
        log_std: Where the free log standard deviations begin in the flat parameters; -1 without them.
        log_std_limit: The limit of log standard deviations; infinity without one.
        sizes: The number of values of each choice, whose logits lie one behind the other; none if the distribution is
            a Gaussian.
    """

    encoder: Array
    policy: Array
    value: Array
    log_std: int
    log_std_limit: float
    sizes: Array


@kernel
def compute_dist(out, data, log_std, limit):  # type: ignore[no-untyped-def]
    """Append or clip the log standard deviations [rows, 2 * size] as RLlib's heads do."""
    rows, size = out.shape[0], out.shape[1] if log_std >= 0 else out.shape[1] // 2
    dist, top = np.empty((rows, 2 * size), np.float32), np.float32(limit)
    for i in range(rows):
        for j in range(size):
            dist[i, j] = out[i, j]
            s = data[log_std + j] if log_std >= 0 else out[i, size + j]
            s = top if s > top else s
            dist[i, size + j] = -top if s < -top else s
    return dist


@kernel
def compute_outputs(x, first, second, data):  # type: ignore[no-untyped-def]
    """Run two networks in sequence, and return the outputs [rows, outputs]; flags at the end of rows are not seen."""
    rows = x.shape[0]
    hidden = forward(
        cut_flags(x, first if first.shape[0] else second),
        first,
        data,
        np.empty(rows * count_outputs(first), np.float32),
    )
    return forward(hidden, second, data, np.empty(rows * count_outputs(second), np.float32))


@kernel
def infer_dist(x, encoder, policy, data, log_std, limit, sizes):  # type: ignore[no-untyped-def]
    """Return the distribution's inputs for a few observations [rows, inputs]."""
    out = compute_outputs(x, encoder, policy, data)
    mask_outputs(out, x, (encoder if encoder.shape[0] else policy)[0, INPUTS])
    return out if sizes.size else compute_dist(out, data, log_std, limit)


@kernel
def _weigh(logp, old_logp, gain, clip):  # type: ignore[no-untyped-def]
    """Return the gradient of the surrogate loss by the log probability of the action."""
    one = np.float32(1.0)
    ratio = math.exp(logp - old_logp)
    # d ratio / d logp = ratio. Inside the clip range both terms are equal and have the plain gradient. Outside, the
    # minimum is either the clipped term, which is constant, or the plain term, which has a gradient.
    plain, clipped = gain * ratio, gain * min(max(ratio, one - clip), one + clip)
    return -plain * np.float32(plain <= clipped)


@kernel
def _differentiate_choice(logits, rows, index, c, grad):  # type: ignore[no-untyped-def]
    """Write the gradient of the mean loss by the logits [rows, values] of one choice into ``grad``."""
    f = np.float32
    count, size = logits.shape
    clip, entropy_coeff, kl, scale = f(c.clip_param), f(c.entropy), f(c.kl), f(1.0 / count)
    for i in range(count):
        r, highest, total, entropy, logp = index[i], logits[i, 0], f(0.0), f(0.0), f(0.0)
        for j in range(1, size):
            highest = max(highest, logits[i, j])
        for j in range(size):
            total += math.exp(logits[i, j] - highest)
        norm = highest + math.log(total)
        for j in range(size):
            log_p = logits[i, j] - norm
            grad[i, j] = math.exp(log_p)
            entropy -= grad[i, j] * log_p
            logp += rows.actions[r, j] * log_p
        weight = _weigh(logp, rows.logp[r], rows.advantages[r], clip)
        for j in range(size):
            p = grad[i, j]
            g = weight * (rows.actions[r, j] - p)  # d logp(action) / d logits = one-hot - probabilities
            if c.use_kl_loss:  # KL(old || new): d / d logits = new - old probabilities
                g += kl * (p - math.exp(rows.dist[r, j]))
            if entropy_coeff:  # The loss holds -H; dH / d logit_j = -p_j (log p_j + H), with H = -sum(p log p).
                g += entropy_coeff * p * (logits[i, j] - norm + entropy)
            grad[i, j] = g * scale


@kernel
def _differentiate_choices(logits, sizes, rows, index, c, grad):  # type: ignore[no-untyped-def]
    """Write the gradient of the mean loss by the logits [rows, values] of several choices into ``grad``.

    The choices are independent: their log probabilities, entropies and KL divergences are summed up. For one choice
    this is `_differentiate_choice`, except for the last digits.

    Args:
        logits: Those of all choices, one choice behind the other.
        sizes: The number of values of each choice.
    """
    f = np.float32
    count = logits.shape[0]
    clip, entropy_coeff, kl, scale = f(c.clip_param), f(c.entropy), f(c.kl), f(1.0 / count)
    norms, entropies = np.empty(sizes.size, f), np.empty(sizes.size, f)
    for i in range(count):
        r, logp, begin = index[i], f(0.0), 0
        for k in range(sizes.size):
            end, highest, total, entropy = begin + sizes[k], logits[i, begin], f(0.0), f(0.0)
            for j in range(begin + 1, end):
                highest = max(highest, logits[i, j])
            for j in range(begin, end):  # Where there are many choices, these exponentials are most of the work.
                grad[i, j] = math.exp(logits[i, j] - highest)
                total += grad[i, j]
            norm = highest + math.log(total)
            for j in range(begin, end):
                log_p = logits[i, j] - norm
                grad[i, j] /= total
                entropy -= grad[i, j] * log_p
                logp += rows.actions[r, j] * log_p
            norms[k], entropies[k], begin = norm, entropy, end
        weight, begin = _weigh(logp, rows.logp[r], rows.advantages[r], clip), 0
        for k in range(sizes.size):
            end, norm, entropy = begin + sizes[k], norms[k], entropies[k]
            for j in range(begin, end):
                p = grad[i, j]
                g = weight * (rows.actions[r, j] - p)
                if c.use_kl_loss:
                    g += kl * (p - math.exp(rows.dist[r, j]))
                if entropy_coeff:
                    g += entropy_coeff * p * (logits[i, j] - norm + entropy)
                grad[i, j] = g * scale
            begin = end


@kernel
def _differentiate_gaussian(dist, out, data, log_std_grad, network, rows, index, c, grad):  # type: ignore[no-untyped-def]
    """Write the gradient of the mean loss by the policy's outputs ``out`` into ``grad``.

    Args:
        dist: What `compute_dist` made of the outputs.
        log_std_grad: The gradient by the free log standard deviations, overwritten.
    """
    f = np.float32
    count, size = dist.shape[0], dist.shape[1] // 2
    clip, entropy, kl, scale, one = f(c.clip_param), f(c.entropy), f(c.kl), f(1.0 / count), f(1.0)
    limit, constant, free = f(network.log_std_limit), f(0.5 * math.log(2.0 * math.pi)), network.log_std >= 0
    log_std_grad[:] = f(0.0)
    for i in range(count):
        r, logp = index[i], f(0.0)
        for j in range(size):
            scaled = (rows.actions[r, j] - dist[i, j]) * math.exp(-dist[i, size + j])
            logp -= f(0.5) * scaled * scaled + dist[i, size + j] + constant
        weight = _weigh(logp, rows.logp[r], rows.advantages[r], clip)
        for j in range(size):
            log_std = dist[i, size + j]
            inverse = math.exp(-log_std)
            scaled = (rows.actions[r, j] - dist[i, j]) * inverse
            # d logp / d mean = (a - mean) / std^2;  d logp / d log_std = ((a - mean) / std)^2 - 1
            mean_grad, std_grad = scaled * inverse * weight, (scaled * scaled - one) * weight
            if c.use_kl_loss:  # In KL(old || new), the old policy's mean and standard deviation are constants.
                shift = (dist[i, j] - rows.dist[r, j]) * inverse
                mean_grad += kl * shift * inverse
                ratio = math.exp(f(2.0) * (rows.dist[r, size + j] - log_std))
                std_grad += kl * (one - ratio - shift * shift)
            std_grad -= entropy  # A Gaussian's entropy is its log_std plus a constant.
            grad[i, j] = mean_grad * scale
            unclipped = data[network.log_std + j] if free else out[i, size + j]
            if abs(unclipped) > limit:
                std_grad = f(0.0)
            if free:
                log_std_grad[j] += std_grad * scale
            else:
                grad[i, size + j] = std_grad * scale


@kernel
def update(p, network, rows, order, sizes, c, lr):  # type: ignore[no-untyped-def]
    """Do a step for each minibatch.

    Args:
        p: The `Parameters`.
        network: The `Network`.
        rows: The `PPOBatch`, as arrays.
        order: The rows of all minibatches, end to end.
        sizes: The number of rows of each minibatch.
        c: The `PPOCoefficients`.
        lr: The learning rate.

    Returns:
        Of the last minibatch the distribution's inputs [rows, ...], the values [rows], and the gradient's norm.
    """
    f, encoder, policy, value = np.float32, network.encoder, network.policy, network.value
    # A row ends with the flags of its legal actions, if it has any, which no network sees.
    largest, width, begin, norm = sizes.max(), (encoder if encoder.shape[0] else policy)[0, INPUTS], 0, f(0.0)
    num_flags = rows.obs.shape[1] - width
    flags = np.empty((largest, num_flags), f)
    obs = np.empty(largest * width, f)
    encoder_outputs = np.empty(largest * count_outputs(encoder), f)
    policy_outputs = np.empty(largest * count_outputs(policy), f)
    value_outputs = np.empty(largest * count_outputs(value), f)
    room = largest * max(find_width(encoder), find_width(policy), find_width(value))
    delta, spare, third = np.empty(room, f), np.empty(room, f), np.empty(room, f)
    shared = encoder.shape[0] > 0
    dist, values = np.empty((0, 0), f), np.empty(0, f)
    for k in range(sizes.size):
        size = sizes[k]
        index = order[begin : begin + size]
        begin += size
        x = obs[: size * width].reshape(size, width)
        for i in range(size):
            for j in range(width):
                x[i, j] = rows.obs[index[i], j]
        hidden = forward(x, encoder, p.data, encoder_outputs)
        out = forward(hidden, policy, p.data, policy_outputs)
        if num_flags:
            for i in range(size):
                for j in range(num_flags):
                    flags[i, j] = rows.obs[index[i], width + j]
            # The gradient by an output for an illegal action is zero, because its probability is.
            mask_outputs(out, flags[:size], 0)
        policy_grad = delta[: out.size].reshape(out.shape)
        if network.sizes.size:
            dist = out
            if network.sizes.size == 1:
                _differentiate_choice(out, rows, index, c, policy_grad)
            else:
                _differentiate_choices(out, network.sizes, rows, index, c, policy_grad)
        else:
            free = p.grad[network.log_std : network.log_std + out.shape[1]] if network.log_std >= 0 else p.grad[:0]
            dist = compute_dist(out, p.data, network.log_std, network.log_std_limit)
            _differentiate_gaussian(dist, out, p.data, free, network, rows, index, c, policy_grad)
        through_policy = backward(hidden, policy, p.data, p.grad, policy_outputs, delta, spare, shared)
        if shared:
            third[: hidden.size] = through_policy[: hidden.size]
        values = forward(hidden, value, p.data, value_outputs)[:, 0]
        scale, limit = f(2.0 * c.vf_loss_coeff * c.use_critic / size), f(c.vf_clip_param)
        for i in range(size):
            # RLlib clips the squared error itself, and not the value as in the paper, so the loss is flat beyond the
            # limit.
            error = values[i] - rows.targets[index[i]]
            delta[i] = error * f(error * error <= limit) * scale
        through_value = backward(hidden, value, p.data, p.grad, value_outputs, delta, spare, shared)
        if shared:
            for i in range(hidden.size):
                third[i] += through_value[i]
            backward(x, encoder, p.data, p.grad, encoder_outputs, third, spare, False)
        norm = step(p, lr)
    return dist, values, norm


def warm_up() -> None:
    """Call each kernel once, on one row."""
    parameters, none, layers = make_blank(8), np.zeros((0, 5), np.int64), np.array([[0, 1, 1, 1, 0]], np.int64)
    row = np.zeros((1, 1), np.float32)
    rows = PPOBatch(row, row, row, row[0], row[0], row[0])
    ones = np.ones(1, np.int64)
    network = Network(none, layers, layers, -1, math.inf, ones)
    update(parameters, network, rows, ones - 1, ones, PPOCoefficients(0.2, 1.0, 0.5, 0.0, 0.0, False, True), 1e-3)
    infer_dist(row, none, layers, parameters.data, -1, math.inf, ones)
    compute_outputs(row, none, layers, parameters.data)
