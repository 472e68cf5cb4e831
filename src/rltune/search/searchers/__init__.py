"""Samplers of our own, beside those of Optuna. They import Optuna as they are loaded, and are loaded by name."""
