"""Networks that compute with kernels or with torch's autograd, their flat parameters, and optimizers."""
