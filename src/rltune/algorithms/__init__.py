"""Build a validated RLlib config from an algorithm file and one sampled configuration of hyperparameters."""
