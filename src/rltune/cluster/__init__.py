"""Start and watch the Ray cluster that runs the trials, and its processes. Only this package starts Ray."""
