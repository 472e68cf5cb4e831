"""Run and read sweeps from Python and from notebooks."""
