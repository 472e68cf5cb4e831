"""From an algorithm file and a sample to a validated RLlib configuration."""
