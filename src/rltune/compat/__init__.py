"""Every private name of another library that we use, guarded by version, each with a plain path."""
