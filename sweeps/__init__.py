"""In a checkout ``python -m sweeps.<command>`` is what ``rltune <command>`` is everywhere. Not part of the wheel."""

from rltune.cli import __path__ as __path__  # each command is found there
