"""What makes a command of a function: its settings by Hydra, its errors in three parts, its end by a signal."""
