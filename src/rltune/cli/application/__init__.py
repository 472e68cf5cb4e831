"""Make commands of functions: settings by Hydra, errors in three parts, an orderly end by a signal."""
