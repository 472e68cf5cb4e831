"""PPO and A2C with array hot loops."""
