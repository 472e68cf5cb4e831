"""Compose settings with Hydra from ``conf/``, the user's own config files and overrides."""
