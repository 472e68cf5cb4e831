"""One environment from its specification. No Ray."""
