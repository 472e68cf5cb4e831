"""Compiled kernels of the engine: perceptrons on the CPU, in float32, at minibatches of any size.

A minibatch of 64 rows is about 70 calls of torch, and the calls cost more than the arithmetic. A kernel does all
minibatches of an update in one call. It works in place on the memory of RLlib's parameters and of its optimizer's
state, so that modules, checkpoints and statistics stay what they are. Whatever is no perceptron on the CPU, and all of
it where Numba cannot be imported, is trained by torch's autograd.

`rltune.engine.kernels.compiler` compiles and keeps the machine code; `rltune.engine.kernels.perceptron` computes
networks, `rltune.engine.kernels.steps` clips gradients and steps parameters, and each algorithm has a module.
"""
