"""What a person types: ``python -m sweeps.<command>``. Each command is a Hydra application without logic of its own."""
