"""Compose settings by Hydra from ``conf/``, the user's own files and overrides, for a command or a call."""
