"""Turn functions into commands: Hydra composes settings, errors have three parts, and signals end them cleanly."""
