"""Searchers and schedulers: choose which configurations are tried, and which trials are stopped early. No Ray."""
