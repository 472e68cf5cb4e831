"""Array code for sampling: environments, actions and observation normalisation."""
