"""Do the gradient steps of DQN, and choose its greedy actions.

The loss is ``DQNTorchLearner.compute_loss_for_module`` of ray 2.60: double (van Hasselt et al. 2016), dueling (Wang et
al. 2016), weighted by importance. `rltune.engine.off_policy.dqn` has the loss itself, for torch.
"""

from __future__ import annotations

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

Array = NDArray[Any]


class Network(NamedTuple):
    """RLlib's default DQN module, as tables of layers; the target network has the same.

    Attributes:
        encoder: The layers that the heads share.
        advantage: The layers to one output an action.
        value: The layers to one output when dueling; none otherwise.
    """

    encoder: Array
    advantage: Array
    value: Array


class Loss(NamedTuple):
    """The loss's settings.

    Attributes:
        double: Whether the online network chooses the next action and the target network judges it.
        huber: The Huber loss of the errors instead of the squared one.
    """

    double: bool
    huber: bool


@kernel
def find_best(values):  # type: ignore[no-untyped-def]
    """Return the index of the largest value, or of a value that is NaN."""
    best = 0
    for j in range(1, values.size):
        if values[j] > values[best] or values[j] != values[j]:
            best = j
    return best


@kernel
def explore(actions, draws, epsilon, count, flags):  # type: ignore[no-untyped-def]
    """Replace actions [rows] by random ones where uniform ``draws`` [rows] are below ``epsilon``.

    Args:
        actions: Overwritten.
        draws: Between 0 and 1.
        epsilon: The share of random actions.
        count: The number of actions.
        flags: Which of them are legal [rows, count]; of no columns if all are.
    """
    for i in range(actions.size):
        if draws[i] < epsilon:  # Given that a draw is below epsilon, it is uniform between 0 and epsilon.
            legal = count
            if flags.shape[1]:
                legal = 0
                for j in range(count):
                    legal += flags[i, j] != 0
            place = min(int(draws[i] / epsilon * legal), legal - 1)
            action = place
            if legal < count:
                action = -1
                while place >= 0:
                    action += 1
                    place -= flags[i, action] != 0
            actions[i] = action


@kernel
def choose_actions(rows, layers, data, draws, epsilon):  # type: ignore[no-untyped-def]
    """Return greedy actions [rows] by the layers from observations [rows, columns] to advantages, and `explore`."""
    count, width = rows.shape[0], layers[0, INPUTS]
    x = cut_flags(rows, layers)
    values = forward(x, layers, data, np.empty(count * count_outputs(layers), np.float32))
    mask_outputs(values, rows, width)
    actions = np.empty(count, np.int64)
    for i in range(count):
        actions[i] = find_best(values[i])
    explore(actions, draws, epsilon, values.shape[1], rows[:, width:])
    return actions


@kernel
def _compute_values(x, network, data, encoder_outputs, advantage_outputs, value_outputs):  # type: ignore[no-untyped-def]
    """Return the encoder's outputs and the action values [rows, actions]; the buffers are for `backward`."""
    hidden = forward(x, network.encoder, data, encoder_outputs)
    values = forward(hidden, network.advantage, data, advantage_outputs)
    if network.value.shape[0]:
        value = forward(hidden, network.value, data, value_outputs)
        for i in range(values.shape[0]):
            # The mean of the advantages is subtracted, because otherwise a constant could move between advantages and
            # value (equation 9 of the paper).
            shift = value[i, 0] - values[i].sum() / np.float32(values.shape[1])
            for j in range(values.shape[1]):
                values[i, j] += shift
    return hidden, values


@kernel
def update(p, network, target, batch, weights, loss, lr):  # type: ignore[no-untyped-def]
    """Do one gradient step.

    Args:
        p: The `Parameters`.
        network: The `Network`.
        target: The flat parameters of the target network.
        batch: Rows of the replay memory.
        weights: Their importance [rows].
        loss: The `Loss`.
        lr: The learning rate.

    Returns:
        The values of the actions [rows], their temporal-difference errors [rows], and the gradient's norm.
    """
    f, encoder, advantage, value = np.float32, network.encoder, network.advantage, network.value
    rows, width, one = batch.shape[0], (batch.shape[1] - 3) // 2, np.float32(1.0)
    # An observation ends with the flags of its legal actions, if it has any, which the network does not see.
    inputs = encoder[0, INPUTS] if encoder.shape[0] else advantage[0, INPUTS]
    after = batch[:, width : 2 * width]
    encoder_outputs = np.empty(rows * count_outputs(encoder), f)
    advantage_outputs = np.empty(rows * count_outputs(advantage), f)
    value_outputs = np.empty(rows * count_outputs(value), f)
    room = rows * max(find_width(encoder), find_width(advantage), find_width(value))
    delta, spare, third = np.empty(room, f), np.empty(room, f), np.empty(room, f)
    chosen, selected, errors = np.empty(rows, np.int64), np.empty(rows, f), np.empty(rows, f)
    x = np.empty((rows, inputs), f)
    x[:] = after[:, :inputs]
    if loss.double:
        _, values = _compute_values(x, network, p.data, encoder_outputs, advantage_outputs, value_outputs)
        mask_outputs(values, after, inputs)
        for i in range(rows):
            chosen[i] = find_best(values[i])
    _, values = _compute_values(x, network, target, encoder_outputs, advantage_outputs, value_outputs)
    mask_outputs(values, after, inputs)
    for i in range(rows):
        best = chosen[i] if loss.double else find_best(values[i])
        errors[i] = -(batch[i, 2 * width + 1] + batch[i, 2 * width + 2] * values[i, best])
    x[:] = batch[:, :inputs]
    hidden, values = _compute_values(x, network, p.data, encoder_outputs, advantage_outputs, value_outputs)
    actions, dueling = values.shape[1], value.shape[0] > 0
    grad, slopes = delta[: rows * actions].reshape(rows, actions), np.empty(rows, f)
    grad[:] = f(0.0)
    for i in range(rows):
        action = int(batch[i, 2 * width])
        selected[i] = values[i, action]
        errors[i] += selected[i]
        slope = f(2.0) * errors[i]
        if loss.huber:  # The Huber loss's slope is the clipped error. NaN passes, because it fails comparisons.
            slope = errors[i]
            slope = one if slope > one else slope
            slope = -one if slope < -one else slope
        # Only the value of the chosen action has a gradient.
        slopes[i] = slope * weights[i] / f(rows)
        if dueling:
            grad[i] -= slopes[i] / f(actions)
        grad[i, action] += slopes[i]
    through = backward(hidden, advantage, p.data, p.grad, advantage_outputs, delta, spare, True)
    third[: hidden.size] = through[: hidden.size]
    if dueling:
        delta[:rows] = slopes
        through = backward(hidden, value, p.data, p.grad, value_outputs, delta, spare, True)
        for i in range(hidden.size):
            third[i] += through[i]
    backward(x, encoder, p.data, p.grad, encoder_outputs, third, spare, False)
    norm = step(p, lr)
    return selected, errors, norm


def warm_up() -> None:
    """Call each kernel once, on one row."""
    floats, layers = np.zeros(8, np.float32), np.array([[0, 1, 1, 1, 0]], np.int64)
    row = np.zeros((1, 5), np.float32)
    update(make_blank(8), Network(layers, layers, layers), floats, row, row[0, :1], Loss(True, True), 1e-3)
    x, draw, action = row[:, :1].copy(), np.ones(1), np.zeros(1, np.int64)
    choose_actions(x, layers, floats, draw, 0.0)
    explore(action, draw, 0.0, 1, row[:, 1:1])
