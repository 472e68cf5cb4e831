"""The Ray that runs the trials, and its processes. The only room that starts Ray."""
