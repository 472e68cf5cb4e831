"""Networks by kernels or by torch's autograd, flat parameters, and optimizers."""
