"""DQN and SAC on arrays."""
