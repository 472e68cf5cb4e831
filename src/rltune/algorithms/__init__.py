"""Turn an algorithm file and a sample into a validated RLlib configuration."""
