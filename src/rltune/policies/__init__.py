"""Use a trained policy outside of training: load, act, evaluate, export and film it. Starts no Ray."""
