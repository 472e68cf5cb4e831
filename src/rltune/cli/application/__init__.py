"""Turn functions into commands: settings are read from YAML and words, errors have three parts, signals end cleanly."""
