"""Measure the best use of this machine's cores, for one trial and for a sweep."""
