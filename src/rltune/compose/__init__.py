"""Compose settings with Hydra from ``conf/``, the user's own files and overrides."""
