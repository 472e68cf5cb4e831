"""Makes ``python -m sweeps.<command>`` work in a checkout, as ``rltune <command>`` does; not part of the wheel."""

import rltune.cli.application.interrupts  # noqa: F401 - It answers Ctrl-C while the command is imported.
