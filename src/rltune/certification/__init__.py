"""Certification: retrain the best configurations on fresh seeds, and choose and measure the policy that wins."""
