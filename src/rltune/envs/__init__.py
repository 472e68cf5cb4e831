"""Describe an environment by plain values (its specification), and build and check it, without Ray."""
