"""A trained policy outside training: load, act, evaluate, export, film. Starts no Ray."""
