"""Networks and optimizers without autograd where that is faster."""
