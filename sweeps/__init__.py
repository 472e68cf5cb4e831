"""Makes ``python -m sweeps.<command>`` work in a checkout, as ``rltune <command>`` does; not part of the wheel."""
