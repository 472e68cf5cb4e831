"""Which configurations are tried and which are stopped. No Ray."""
