"""Compute perceptrons and their gradients, in place on flat parameters.

A layer is a row of a table: where its weights [outputs, inputs] and its biases begin in the flat array, its numbers of
inputs and outputs, and its activation. One compiled function therefore serves networks of any depth and widths.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from rltune.engine.features import UnsupportedError
from rltune.engine.kernels.compiler import kernel
from rltune.envs.layout import ILLEGAL

Array = NDArray[Any]

NONE, TANH, RELU = 0, 1, 2
INPUTS, OUTPUTS = 2, 3  # A row of a table of layers has the number of inputs and outputs in these columns.
ACTIVATIONS: dict[type[nn.Module], int] = {nn.Tanh: TANH, nn.ReLU: RELU}
FEW = 3
"""Outputs up to which a loop is faster than a call of BLAS."""
BLOCK = 256
"""Rows that are summed up in sequence."""

Linears = list[tuple[nn.Linear, int]]


def parse_layers(*modules: nn.Module) -> Linears | None:
    """Read linear layers and activations off RLlib's ``TorchMLP``s in sequence; None if there is anything else."""
    linears: Linears = []
    for piece in [piece for module in modules for piece in getattr(module, "mlp", [None])]:
        if isinstance(piece, nn.Linear) and piece.bias is not None:
            linears.append((piece, NONE))
        elif type(piece) in ACTIVATIONS and linears and linears[-1][1] == NONE:
            linears[-1] = (linears[-1][0], ACTIVATIONS[type(piece)])
        elif not isinstance(piece, nn.Identity):
            return None
    return linears


def make_table(linears: Linears, data: Tensor) -> Array:
    """Return the table of layers whose parameters are views of the flat tensor ``data``."""
    rows = [
        (find_offset(layer.weight, data), find_offset(layer.bias, data), layer.in_features, layer.out_features, kind)
        for layer, kind in linears
    ]
    return np.array(rows, np.int64).reshape(-1, 5)


def find_offset(param: Tensor, data: Tensor) -> int:
    """Return where a parameter begins in the flat tensor ``data``, in floats."""
    offset = (param.data_ptr() - data.data_ptr()) // data.element_size()
    if not 0 <= offset < data.numel():
        raise UnsupportedError("parameters that no optimizer of RLlib's steps")
    return offset


@kernel
def count_outputs(layers):  # type: ignore[no-untyped-def]
    """Return the outputs of all layers together, for one row."""
    total = 0
    for k in range(layers.shape[0]):
        total += layers[k, OUTPUTS]
    return total


@kernel
def find_width(layers):  # type: ignore[no-untyped-def]
    """Return the largest number of inputs or outputs of a layer."""
    width = 0
    for k in range(layers.shape[0]):
        width = max(width, layers[k, INPUTS], layers[k, OUTPUTS])
    return width


@kernel
def cut_flags(rows, layers):  # type: ignore[no-untyped-def]
    """Return what the layers see of rows [rows, columns]: all but the flags of legal actions at their end."""
    width = layers[0, INPUTS]
    if rows.shape[1] == width:
        return rows
    seen = np.empty((rows.shape[0], width), rows.dtype)
    for i in range(rows.shape[0]):
        for j in range(width):
            seen[i, j] = rows[i, j]
    return seen


@kernel
def mask_outputs(out, rows, begin):  # type: ignore[no-untyped-def]
    """Replace the outputs [rows, outputs] for illegal actions, whose flags in ``rows`` begin at a column."""
    for j in range(rows.shape[1] - begin):
        for i in range(rows.shape[0]):
            if rows[i, begin + j] == 0:
                out[i, j] = ILLEGAL


@kernel
def tanh_in_place(x):  # type: ignore[no-untyped-def]
    """Compute tanh by Eigen's rational function, which is vectorized and exact to a few units in the last place."""
    f = np.float32
    for i in range(x.size):
        v = x[i]
        # NaN passes, because comparisons with NaN are false.
        v = f(7.90531111) if v > f(7.90531111) else v
        v = f(-7.90531111) if v < f(-7.90531111) else v
        s = v * v
        p = s * f(-2.76076847742355e-16) + f(2.00018790482477e-13)
        p = p * s + f(-8.60467152213735e-11)
        p = p * s + f(5.12229709037114e-08)
        p = p * s + f(1.48572235717979e-05)
        p = p * s + f(6.37261928875436e-04)
        p = (p * s + f(4.89352455891786e-03)) * v
        q = s * f(1.19825839466702e-06) + f(1.18534705686654e-04)
        q = (q * s + f(2.26843463243900e-03)) * s + f(4.89352518554385e-03)
        x[i] = p / q


@kernel
def forward(x, layers, data, outputs):  # type: ignore[no-untyped-def]
    """Run the layers, and return the last one's output [rows, outputs].

    Args:
        x: The inputs [rows, inputs].
        layers: The table of layers.
        data: The flat parameters.
        outputs: A buffer. It gets the output of each layer, one behind the other, for `backward`.
    """
    rows, begin, zero = x.shape[0], 0, np.float32(0.0)
    for k in range(layers.shape[0]):
        weight, bias, n, m, activation = layers[k]
        w = data[weight : weight + m * n].reshape(m, n)
        b = data[bias : bias + m]
        flat = outputs[begin : begin + rows * m]
        out = flat.reshape(rows, m)
        if m <= FEW:
            for i in range(rows):
                for j in range(m):
                    total = zero
                    for source in range(n):
                        total += x[i, source] * w[j, source]
                    out[i, j] = total
        else:
            np.dot(x, w.T, out)
        for i in range(rows):
            for j in range(m):
                out[i, j] += b[j]
        if activation == TANH:
            tanh_in_place(flat)
        elif activation == RELU:
            for i in range(flat.size):
                flat[i] = zero if flat[i] < zero else flat[i]
        x = out
        begin += rows * m
    return x


@kernel
def _differentiate_layer(d, below, w_grad, b_grad):  # type: ignore[no-untyped-def]
    """Write the gradients by weights and biases, from that by the outputs [rows, outputs] and the inputs."""
    (rows, m), n, few = d.shape, below.shape[1], d.shape[1] <= FEW
    b_grad[:], b_part = np.float32(0.0), np.empty(m, np.float32)
    w_part = np.empty((m if few else 0, n), np.float32)
    if few:
        w_grad[:] = np.float32(0.0)
    else:
        np.dot(d.T, below, w_grad)
    # Rows are summed block by block, because a sequential sum of 100,000 float32 numbers is exact to three digits only.
    for begin in range(0, rows, BLOCK):
        end = min(begin + BLOCK, rows)
        b_part[:] = np.float32(0.0)
        for i in range(begin, end):
            for j in range(m):
                b_part[j] += d[i, j]
        b_grad += b_part
        if few:
            w_part[:] = np.float32(0.0)
            for i in range(begin, end):
                for j in range(m):
                    v = d[i, j]
                    for source in range(n):
                        w_part[j, source] += v * below[i, source]
            w_grad += w_part


@kernel
def backward(  # type: ignore[no-untyped-def]
    x, layers, data, grad, outputs, delta, spare, into_input, into_params=True
):
    """Write the gradients by the layers' parameters.

    Args:
        x: The inputs of `forward`.
        layers: The table of layers.
        data: The flat parameters.
        grad: Their flat gradient, overwritten where the layers' parameters are; None of the rest is touched.
        outputs: What `forward` wrote.
        delta: A buffer that begins with the loss's gradient by the last output; it has room for the widest layer.
        spare: Another buffer of this size.
        into_input: Whether the gradient by ``x`` is wanted.
        into_params: Whether the gradients by the parameters are wanted; otherwise they stay as they are.

    Returns:
        The buffer that begins with the gradient by ``x``.
    """
    rows, end, zero, one = x.shape[0], 0, np.float32(0.0), np.float32(1.0)
    for k in range(layers.shape[0]):
        end += rows * layers[k, OUTPUTS]
    for k in range(layers.shape[0] - 1, -1, -1):
        weight, bias, n, m, activation = layers[k]
        flat = delta[: rows * m]
        out = outputs[end - rows * m : end]
        if activation == TANH:
            for i in range(flat.size):
                flat[i] *= one - out[i] * out[i]
        elif activation == RELU:
            for i in range(flat.size):
                flat[i] = zero if out[i] <= zero else flat[i]  # NaN passes this comparison unchanged.
        d = flat.reshape(rows, m)
        end -= rows * m
        below = x if k == 0 else outputs[end - rows * n : end].reshape(rows, n)
        w = data[weight : weight + m * n].reshape(m, n)
        if into_params:
            _differentiate_layer(d, below, grad[weight : weight + m * n].reshape(m, n), grad[bias : bias + m])
        if k or into_input:
            into = spare[: rows * n].reshape(rows, n)
            if m <= FEW:
                into[:] = zero
                for i in range(rows):
                    for j in range(m):
                        v = d[i, j]
                        for source in range(n):
                            into[i, source] += v * w[j, source]
            else:
                np.dot(d, w, into)
            delta, spare = spare, delta
    return delta
