"""Environments, actions and observation filters on arrays."""
