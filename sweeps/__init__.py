"""In a checkout ``python -m sweeps.<command>`` is what ``rltune <command>`` is everywhere. Not part of the wheel."""
