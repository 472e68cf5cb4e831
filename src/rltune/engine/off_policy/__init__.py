"""DQN and SAC with array hot loops."""
