"""PPO and A2C on arrays."""
